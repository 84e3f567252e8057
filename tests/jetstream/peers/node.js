// Node's @nats-io/jetstream, kv and obj: see natspy.py, which does the same.
//     node node.js write|read '<order as JSON>'
"use strict";
const fs = require("fs");
const crypto = require("crypto");
const { connect } = require("@nats-io/transport-node");
const { headers } = require("@nats-io/nats-core");
const { jetstream, jetstreamManager } = require("@nats-io/jetstream");
const { Kvm } = require("@nats-io/kv");
const { Objm } = require("@nats-io/obj");

const from64 = (text) => new Uint8Array(Buffer.from(text, "base64"));
const to64 = (data) => Buffer.from(data).toString("base64");

function streamOf(data) {
  return new ReadableStream({
    start(controller) {
      controller.enqueue(data);
      controller.close();
    },
  });
}

async function collect(stream) {
  const parts = [];
  for await (const part of stream) parts.push(Buffer.from(part));
  return Buffer.concat(parts);
}

async function write(nc, order) {
  const js = jetstream(nc);
  const { stream, kv, objects } = order;
  const manager = await jetstreamManager(nc);
  await manager.streams.add({ name: stream.name, subjects: [`${stream.name}.>`] });
  for (const message of stream.messages) {
    const h = headers();
    for (const [name, value] of Object.entries(message.headers)) h.append(name, value);
    await js.publish(message.subject, from64(message.data), { headers: h });
  }
  const bucket = await new Kvm(js).create(kv.bucket, { history: kv.history });
  for (const [what, key, value] of kv.operations) {
    if (what === "put") await bucket.put(key, from64(value));
    else if (what === "delete") await bucket.delete(key);
    else await bucket.purge(key);
  }
  const store = await new Objm(js).create(objects.bucket, {});
  const digests = {};
  for (const item of objects.objects) {
    const h = headers();
    for (const [name, values] of Object.entries(item.headers)) {
      for (const value of values) h.append(name, value);
    }
    const info = await store.put(
      {
        name: item.name,
        description: item.description,
        headers: h,
        metadata: item.metadata,
        options: { max_chunk_size: item.chunk_size },
      },
      streamOf(fs.readFileSync(item.path)),
    );
    digests[item.name] = info.digest;
  }
  for (const name of objects.deleted) await store.delete(name);
  for (const [name, target] of Object.entries(objects.links)) {
    await store.link(name, await store.info(target));
  }
  return { digests };
}

async function read(nc, order) {
  const js = jetstream(nc);
  const { stream, kv, objects } = order;
  const messages = [];
  const consumer = await js.consumers.get(stream.name);
  for await (const m of await consumer.fetch({ max_messages: stream.messages.length })) {
    const found = {};
    if (m.headers) for (const [name, values] of m.headers) found[name] = values[0];
    messages.push({
      subject: m.subject,
      data: to64(m.data),
      headers: found,
      sequence: m.seq,
    });
  }
  const bucket = await new Kvm(js).open(kv.bucket);
  const entries = {};
  for (const key of new Set(kv.operations.map((operation) => operation[1]))) {
    entries[key] = [];
    for await (const e of await bucket.history({ key })) {
      entries[key].push([e.operation, to64(e.value), e.revision]);
    }
  }
  const store = await new Objm(js).open(objects.bucket);
  const found = {};
  for (const { name } of await store.list()) {
    const info = await store.info(name);
    if (info.deleted) continue;
    const link = info.options && info.options.link;
    let data = Buffer.alloc(0);
    if (!link || link.name) {
      const result = await store.get(info.name);
      data = await collect(result.data);
      const failure = await result.error;
      if (failure) throw failure;
    }
    const h = {};
    if (info.headers) for (const [name, values] of info.headers) h[name] = values;
    found[info.name] = {
      size: info.size,
      chunks: info.chunks,
      sha256: crypto.createHash("sha256").update(data).digest("hex"),
      digest: info.digest,
      description: info.description,
      headers: h,
      metadata: info.metadata || {},
      link: link ? [link.bucket, link.name || null] : null,
    };
  }
  const status = await bucket.status();
  return { messages, kv: entries, history: status.history, objects: found };
}

(async () => {
  const order = JSON.parse(process.argv[3]);
  const nc = await connect({ servers: order.url });
  const told = await (process.argv[2] === "write" ? write : read)(nc, order);
  console.log(JSON.stringify(told));
  await nc.close();
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
