// Past conversations in the storage of this browser.

const KEY = "conversations";
const MAX_SAVED = 50;

/** Return the saved conversations, the newest first: {id, title, time, turns, last, settings}. */
export function saved() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
}

/** Save a conversation in place of the one with its id. Without room, images and then the oldest ones are dropped. */
export function save(conversation) {
  let all = [conversation, ...saved().filter((other) => other.id !== conversation.id)].slice(0, MAX_SAVED);
  const isStored = () => {
    try {
      localStorage.setItem(KEY, JSON.stringify(all));
      return true;
    } catch {
      return false; // the storage is full
    }
  };
  if (isStored()) return;
  all = all.map((each) => ({ ...each, turns: each.turns.map((turn) => ({ ...turn, images: [] })) }));
  while (!isStored() && all.length > 1) all.pop();
}

export function remove(id) {
  localStorage.setItem(KEY, JSON.stringify(saved().filter((each) => each.id !== id)));
}

export function removeAll() {
  localStorage.removeItem(KEY);
}
