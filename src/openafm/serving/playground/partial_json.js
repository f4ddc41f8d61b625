// The value of a JSON text that is still being written.

/** A value of which more may follow. `PENDING` stands for one that has not started. */
export const PENDING = Symbol("pending");

/** Return the value that a prefix of a JSON text has so far. Throws on text that begins no JSON value. */
export function parsePartial(text) {
  let at = 0;

  const skip = () => {
    while (at < text.length && " \n\r\t".includes(text[at])) at += 1;
  };

  const string = () => {
    const start = at;
    for (at += 1; at < text.length && text[at] !== '"'; at += 1) if (text[at] === "\\") at += 1;
    if (at < text.length) {
      at += 1;
      return JSON.parse(text.slice(start, at));
    }
    at = text.length;
    const open = text.slice(start).replace(/(?<!\\)((?:\\\\)*)\\(u[0-9a-fA-F]{0,3})?$/, "$1"); // an open escape
    return JSON.parse(`${open}"`);
  };

  const word = () => {
    const start = at;
    while (at < text.length && !",]} \n\r\t".includes(text[at])) at += 1;
    const written = text.slice(start, at);
    try {
      return JSON.parse(written);
    } catch (error) {
      if (at === text.length) return PENDING; // such as "tr" or "-"
      throw error;
    }
  };

  const list = () => {
    const items = [];
    for (at += 1; ; at += 1) {
      skip();
      if (at >= text.length) return items;
      if (text[at] === "]") break;
      const item = value();
      if (item !== PENDING) items.push(item);
      skip();
      if (at >= text.length) return items;
      if (text[at] === "]") break;
    }
    at += 1;
    return items;
  };

  const object = () => {
    const fields = {};
    for (at += 1; ; at += 1) {
      skip();
      if (at >= text.length) return fields;
      if (text[at] === "}") break;
      const start = at;
      const name = string();
      if (at >= text.length && text[at - 1] !== '"') return fields; // the name itself is incomplete
      if (text.slice(start, at) === '"') return fields;
      skip();
      if (at < text.length) at += 1; // the colon
      fields[name] = value();
      skip();
      if (at >= text.length) return fields;
      if (text[at] === "}") break;
    }
    at += 1;
    return fields;
  };

  const value = () => {
    skip();
    if (at >= text.length) return PENDING;
    if (text[at] === "{") return object();
    if (text[at] === "[") return list();
    return text[at] === '"' ? string() : word();
  };

  return value();
}
