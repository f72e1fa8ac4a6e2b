// One streamed chat by the official `openai` client for Node, put together as a program would, as JSON on standard output.
// Arguments: the router's URL, the folder where the client is installed, and the request.

import { createRequire } from 'node:module';
import path from 'node:path';

const [url, folder, request] = process.argv.slice(2);
const OpenAI = createRequire(path.resolve(folder, 'package.json'))('openai');
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0, timeout: 60_000 });

const seen = { heads: new Set(), roles: [], finishes: [], text: '', usage: null };
for await (const chunk of await client.chat.completions.create(JSON.parse(request))) {
    seen.heads.add(`${chunk.id} ${chunk.created} ${chunk.model}`);
    seen.usage = chunk.usage ?? seen.usage;
    for (const { delta, finish_reason: reason } of chunk.choices) {
        seen.text += delta.content ?? '';
        if (delta.role) seen.roles.push(delta.role);
        if (reason) seen.finishes.push(reason);
    }
}
const { prompt_tokens: prompt, completion_tokens: answer } = seen.usage;
console.log(JSON.stringify({ ...seen, heads: seen.heads.size, usage: [prompt, answer] }));
