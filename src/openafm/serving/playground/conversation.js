// The tree of a conversation. A turn has a prompt and an answer for each variant; a fork is a turn with the same parent.

let numTurns = 0;

export class Conversation {
  constructor(id = crypto.randomUUID()) {
    this.id = id; // of the saved conversation
    this.turns = []; // {id, parent, prompt, images, answers, chosen}; parent is an id or null
    this.last = null; // id of the turn that the next prompt follows
  }

  /** Return a conversation that `history.js` has saved. */
  static restored({ id, turns, last }) {
    const made = new Conversation(id);
    Object.assign(made, { turns, last });
    numTurns = Math.max(numTurns, ...turns.map((turn) => turn.id));
    return made;
  }

  /** Return the turns that follow one; null: the first ones. */
  children(parent) {
    return this.turns.filter((turn) => turn.parent === parent);
  }

  find(id) {
    return this.turns.find((turn) => turn.id === id) ?? null;
  }

  /** Add a turn after the last one. */
  add(prompt, images, answers) {
    const turn = { id: (numTurns += 1), parent: this.last, prompt, images, answers, chosen: 0 };
    this.turns.push(turn);
    this.last = turn.id;
    return turn;
  }

  /** Return the turns from the first one to the last one. */
  path(last = this.last) {
    const turns = [];
    for (let turn = this.find(last); turn !== null; turn = this.find(turn.parent)) turns.unshift(turn);
    return turns;
  }

  /** Return the turns with the same parent, in order of creation. */
  siblings(turn) {
    return this.turns.filter((other) => other.parent === turn.parent);
  }

  /** Show another fork: its newest descendants follow. */
  show(turn) {
    let last = turn;
    for (let next = turn; next; next = this.turns.findLast((other) => other.parent === last.id)) last = next;
    this.last = last.id;
  }

  /** Let the next prompt take the place of a turn. The turn and what follows it stay as another branch. */
  forkAt(turn) {
    this.last = turn.parent;
  }
}

/** Return the messages of turns in OpenAI's form. */
export function messagesOf(turns) {
  return turns.flatMap((turn) => [promptMessage(turn.prompt, turn.images), ...answerMessages(turn.answers[turn.chosen])]);
}

/** Return the message of a prompt; `images` are data URLs. */
export function promptMessage(text, images) {
  if (images.length === 0) return { role: "user", content: text };
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return { role: "user", content: [...parts, { type: "text", text }] };
}

/** Return the messages of an answer: text, calls, and the outputs of calls. */
export function answerMessages(answer) {
  return answer.steps.flatMap((step) => {
    const message = { role: "assistant", content: step.text };
    if (step.calls.length === 0) return step.text ? [message] : [];
    const tool_calls = step.calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
    const outputs = step.calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: call.output }));
    return [{ ...message, tool_calls }, ...outputs];
  });
}
