// OpenAI's Node client: chat, streaming, tools.

import assert from "node:assert";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "unused" });
const messages = [{ role: "user", content: "Hello" }];
const whole = await client.chat.completions.create({ model: "nano", messages, max_tokens: 8 });
let text = "";
for await (const chunk of await client.chat.completions.create({ model: "nano", messages, max_tokens: 8, stream: true })) {
  text += chunk.choices[0]?.delta?.content ?? "";
}
assert.equal(text, whole.choices[0].message.content);
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "weather", parameters } }];
const called = await client.chat.completions.create({ model: "nano", messages, tools, tool_choice: "required" });
assert.equal(called.choices[0].message.tool_calls[0].function.name, "weather");
await assert.rejects(client.chat.completions.create({ model: "none", messages }), OpenAI.NotFoundError);
