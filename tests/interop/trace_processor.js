// SQL on a trace by Perfetto's own trace processor: the WebAssembly one of Perfetto's user interface, run in Node.
//   node trace_processor.js FOLDER TRACE < queries.json
// FOLDER has the interface's engine_bundle.js and trace_processor*.wasm; queries.json is a list of statements. One line of JSON
// per statement: {"columns": [...], "rows": [[...], ...]} or {"error": "..."}; exit code 1 when the trace cannot be read.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");
const { MessageChannel } = require("worker_threads");

const node = process;
const [folder, trace] = node.argv.slice(2);

// ---- protobuf: as much as the trace processor's remote calls need (perfetto/trace_processor/trace_processor.proto) ----------
function varint(value) {
  const bytes = [];
  for (let v = BigInt(value); ; v >>= 7n) {
    if (v < 128n) return bytes.concat(Number(v));
    bytes.push(Number(v & 127n) | 128);
  }
}
const number = (field, value) => Buffer.from([...varint(field << 3), ...varint(value)]);
const bytes = (field, value) => Buffer.concat([Buffer.from([...varint((field << 3) | 2), ...varint(value.length)]), value]);

// [field, value] pairs; value: BigInt, or a Buffer.
function* fields(buffer) {
  let at = 0;
  const read = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = buffer[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  while (at < buffer.length) {
    const key = Number(read());
    const [field, kind] = [key >> 3, key & 7];
    if (kind === 0) yield [field, read()];
    else if (kind === 2) { const size = Number(read()); yield [field, buffer.subarray(at, (at += size))]; }
    else if (kind === 1) yield [field, buffer.subarray(at, (at += 8))];
    else throw new Error(`wire type ${kind}`);
  }
}
function varints(buffer) {
  const values = [];
  let value = 0n, shift = 0n;
  for (const byte of buffer) {
    value |= BigInt(byte & 127) << shift;
    shift += 7n;
    if (byte < 128) { values.push(Number(BigInt.asIntN(64, value))); value = 0n; shift = 0n; }
  }
  return values;
}

// ---- the engine: a web worker that is handed a port ------------------------------------------------------------------------------
function start_engine() {
  const file = (url) => path.join(folder, path.basename(String(url)));
  Object.assign(globalThis, {
    self: globalThis,
    WorkerGlobalScope: class {},
    importScripts() {},
    location: new URL("http://perfetto/engine_bundle.js"),
    XMLHttpRequest: class {  // how the bundle loads its WebAssembly: in one go
      open(_, url) { this.url = url; }
      send() { this.response = new Uint8Array(fs.readFileSync(file(this.url))).buffer; }
    },
  });
  Reflect.deleteProperty(globalThis, "process");  // its presence means "node" to the bundle, which was built for browsers
  vm.runInThisContext(fs.readFileSync(file("engine_bundle.js"), "utf8"), { filename: "engine_bundle.js" });
  const channel = new MessageChannel();
  globalThis.onmessage({ data: channel.port2 });
  return channel.port1;
}

const APPEND = 1, FINALIZE = 2, QUERY = 3;
class Processor {
  constructor(port) {
    this.port = port;
    this.sequence = 0;
    this.waiting = [];
    port.on("message", (data) => this.receive(Buffer.from(data)));
  }
  call(kind, ...payload) {
    const rpc = Buffer.concat([number(1, this.sequence++), number(2, kind), ...payload]);
    this.port.postMessage(new Uint8Array(bytes(1, rpc)));
    return new Promise((resolve, reject) => this.waiting.push({ resolve, reject, parts: [] }));
  }
  receive(stream) {
    for (const [, rpc] of fields(stream)) {
      const call = this.waiting[0];
      let done = true;
      for (const [field, value] of fields(rpc)) {
        if (field === 5) { this.waiting.shift(); call.reject(new Error(value.toString())); return; }
        if (field === 203) { call.parts.push(value); done = is_last(value); }
        if (field === 201) for (const [f, v] of fields(value)) if (f === 2) call.error = v.toString();
      }
      if (!done) continue;
      this.waiting.shift();
      if (call.error) call.reject(new Error(call.error));
      else call.resolve(call.parts);
    }
  }
}
function is_last(result) {
  for (const [field, value] of fields(result)) {
    if (field === 2) return true;
    if (field === 3) for (const [f, v] of fields(value)) if (f === 6 && v) return true;
  }
  return false;
}

function table(parts) {
  const columns = [], rows = [];
  for (const part of parts) {
    for (const [field, value] of fields(part)) {
      if (field === 1) columns.push(value.toString());
      if (field === 2 && value.length) return { error: value.toString() };
      if (field === 3) read_batch(value, columns.length, rows);
    }
  }
  return { columns, rows };
}
function read_batch(batch, width, rows) {
  let cells = [], integers = [], floats = [], strings = [], blobs = [];
  for (const [field, value] of fields(batch)) {
    if (field === 1) cells = [...value];
    if (field === 2) integers = varints(value);
    if (field === 3) for (let i = 0; i < value.length; i += 8) floats.push(value.readDoubleLE(i));
    if (field === 4) blobs.push(value.toString("hex"));
    if (field === 5) strings = value.toString().split("\0");
  }
  const next = { 1: () => null, 2: () => integers.shift(), 3: () => floats.shift(), 4: () => strings.shift(), 5: () => blobs.shift() };
  for (let i = 0; i < cells.length; i += width) rows.push(cells.slice(i, i + width).map((kind) => next[kind]()));
}

async function main() {
  const processor = new Processor(start_engine());
  const data = fs.readFileSync(trace);
  const piece = 1 << 20;
  for (let at = 0; at < data.length; at += piece) await processor.call(APPEND, bytes(101, data.subarray(at, at + piece)));
  await processor.call(FINALIZE);
  for (const sql of JSON.parse(fs.readFileSync(0, "utf8"))) {
    const answer = table(await processor.call(QUERY, bytes(103, bytes(1, Buffer.from(sql)))));
    fs.writeSync(1, JSON.stringify(answer) + "\n");
  }
  node.exit(0);
}
main().catch((error) => {
  console.error(String(error.stack || error));
  node.exit(1);
});
