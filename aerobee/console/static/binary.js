// Decoders of binary bodies. Input is untrusted: each length is compared with the bytes that are left, and nesting is bounded.

const DEPTH_MAX = 64;
const VALUES_MAX = 100_000;
const KEY_CHARS_MAX = 1_000; // of a key that is no text

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.at = 0;
    this.values = 0;
  }

  // The offset of the next `length` bytes, which are then read.
  take(length) {
    if (length > this.bytes.length - this.at) throw new Error("the body ends inside a value");
    this.values += 1;
    if (this.values > VALUES_MAX) throw new Error("the body has too many values");
    const at = this.at;
    this.at += length;
    return at;
  }

  part(length) { const at = this.take(length); return this.bytes.subarray(at, at + length); }
  text(length) { return new TextDecoder("utf-8", { fatal: true }).decode(this.part(length)); }
  unsigned(length) {
    const at = this.take(length);
    return { 1: () => this.view.getUint8(at), 2: () => this.view.getUint16(at), 4: () => this.view.getUint32(at), 8: () => this.view.getBigUint64(at) }[length]();
  }

  signed(length) {
    const at = this.take(length);
    return { 1: () => this.view.getInt8(at), 2: () => this.view.getInt16(at), 4: () => this.view.getInt32(at), 8: () => this.view.getBigInt64(at) }[length]();
  }
}

function hexOf(bytes) {
  return `0x${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

// Numbers beyond the exact range of JavaScript are shown with all their digits.
export function pretty(value) {
  return JSON.stringify(value, (_, each) => (typeof each === "bigint" ? (each >= -(2n ** 53n) && each <= 2n ** 53n ? Number(each) : `${each}`) : each), 2);
}

// A key as text. Each map that is a key of a map has its quotation marks escaped once more: 30 of them would be a gigabyte.
function keyOf(found) {
  if (typeof found === "string") return found;
  const text = pretty(found);
  if (text === undefined || text.length > KEY_CHARS_MAX) throw new Error("a key is too long");
  return text;
}

// One MessagePack value over the whole body. Throws for other bytes, and for a single small integer, which any byte would be.
export function messagePack(bytes) {
  const reader = new Reader(bytes);
  const value = packed(reader, 0);
  if (reader.at !== bytes.length || typeof value !== "object" || value === null) throw new Error("not MessagePack");
  return value;
}

function packed(reader, depth) {
  if (depth > DEPTH_MAX) throw new Error("the body is nested too deeply");
  const array = (length) => Array.from({ length: Math.min(length, reader.bytes.length - reader.at + 1) }, () => packed(reader, depth + 1));
  const map = (length) => {
    const pairs = [];
    for (let at = 0; at < length; at += 1) {
      const key = keyOf(packed(reader, depth + 1));
      pairs.push([key, packed(reader, depth + 1)]);
    }
    return Object.fromEntries(pairs);
  };
  const extension = (length) => { const kind = reader.signed(1); return { extension: kind, bytes: hexOf(reader.part(length)) }; };
  const head = reader.unsigned(1);
  if (head <= 0x7f) return head;
  if (head <= 0x8f) return map(head & 0x0f);
  if (head <= 0x9f) return array(head & 0x0f);
  if (head <= 0xbf) return reader.text(head & 0x1f);
  if (head >= 0xe0) return head - 256;
  switch (head) {
    case 0xc0: return null;
    case 0xc2: return false;
    case 0xc3: return true;
    case 0xc4: case 0xc5: case 0xc6: return hexOf(reader.part(reader.unsigned(2 ** (head - 0xc4))));
    case 0xc7: case 0xc8: case 0xc9: return extension(reader.unsigned(2 ** (head - 0xc7)));
    case 0xca: return reader.view.getFloat32(reader.take(4));
    case 0xcb: return reader.view.getFloat64(reader.take(8));
    case 0xcc: case 0xcd: case 0xce: case 0xcf: return reader.unsigned(2 ** (head - 0xcc));
    case 0xd0: case 0xd1: case 0xd2: case 0xd3: return reader.signed(2 ** (head - 0xd0));
    case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: return extension(2 ** (head - 0xd4));
    case 0xd9: case 0xda: case 0xdb: return reader.text(reader.unsigned(2 ** (head - 0xd9)));
    case 0xdc: case 0xdd: return array(reader.unsigned(2 ** (head - 0xdb)));
    case 0xde: case 0xdf: return map(reader.unsigned(2 ** (head - 0xdd)));
    default: throw new Error("not MessagePack");
  }
}

// One CBOR value (RFC 8949) over the whole body, a map or an array. Throws for other bytes.
export function cbor(bytes) {
  const reader = new Reader(bytes);
  const value = item(reader, 0);
  if (reader.at !== bytes.length || typeof value !== "object" || value === null) throw new Error("not CBOR");
  return value;
}

const BREAK = Symbol("break");

function item(reader, depth) {
  if (depth > DEPTH_MAX) throw new Error("the body is nested too deeply");
  const head = reader.unsigned(1);
  const kind = head >> 5;
  const info = head & 0x1f;
  if (kind === 7) return simple(reader, info);
  if (info > 27 && info < 31) throw new Error("not CBOR");
  const isOpen = info === 31; // its end is a break
  if (isOpen && (kind < 2 || kind === 6)) throw new Error("not CBOR");
  const size = isOpen ? Infinity : info < 24 ? info : reader.unsigned(2 ** (info - 24));
  if (kind === 0) return size;
  if (kind === 1) return -1n - BigInt(size);
  if (kind === 6) { const tagged = item(reader, depth + 1); return { tag: size, value: tagged }; }
  const next = () => item(reader, depth + 1);
  const parts = [];
  if (kind < 4) {
    if (!isOpen) { bounded(reader, size); return kind === 3 ? reader.text(Number(size)) : hexOf(reader.part(Number(size))); }
    for (let part = next(); part !== BREAK; part = next()) parts.push(part);
    if (parts.some((part) => typeof part !== "string")) throw new Error("not CBOR");
    return kind === 3 ? parts.join("") : `0x${parts.map((part) => part.slice(2)).join("")}`;
  }
  if (!isOpen) bounded(reader, size);
  for (let at = 0; at < size; at += 1) {
    const one = next();
    if (one === BREAK) { if (isOpen) break; throw new Error("not CBOR"); }
    parts.push(kind === 4 ? one : [keyOf(one), value(next())]);
  }
  return kind === 4 ? parts : Object.fromEntries(parts);
}

function value(found) {
  if (found === BREAK) throw new Error("not CBOR");
  return found;
}

// A size is at most the number of bytes that are left: each entry has one or more.
function bounded(reader, size) {
  if (size > reader.bytes.length - reader.at) throw new Error("the body ends inside a value");
}

function simple(reader, info) {
  switch (info) {
    case 20: return false;
    case 21: return true;
    case 22: return null;
    case 23: return "undefined";
    case 25: return half(reader.unsigned(2));
    case 26: return reader.view.getFloat32(reader.take(4));
    case 27: return reader.view.getFloat64(reader.take(8));
    case 31: return BREAK;
    default: throw new Error("not CBOR");
  }
}

// A float of 16 bits.
function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 31) return fraction ? "NaN" : sign < 0 ? "-Infinity" : "Infinity";
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

// Fields of a Protobuf message by number: the wire format has no names. Throws for other bytes.
export function protobuf(bytes, depth = 0) {
  if (!bytes.length || depth > DEPTH_MAX) throw new Error("not Protobuf");
  const reader = new Reader(bytes);
  const fields = {};
  while (reader.at < bytes.length) {
    const tag = varint(reader);
    const field = tag >> 3n;
    if (field < 1n || field >= 2n ** 29n) throw new Error("not Protobuf");
    (fields[field] ||= []).push(valueOf(reader, Number(tag & 7n), depth));
  }
  return Object.fromEntries(Object.entries(fields).map(([field, values]) => [field, values.length === 1 ? values[0] : values]));
}

function varint(reader) {
  let value = 0n;
  for (let shift = 0n; shift < 70n; shift += 7n) {
    const byte = reader.unsigned(1);
    value |= BigInt(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  throw new Error("not Protobuf");
}

function valueOf(reader, kind, depth) {
  if (kind === 0) return varint(reader);
  if (kind === 1) { const at = reader.take(8); return { fixed64: reader.view.getBigUint64(at, true), double: reader.view.getFloat64(at, true) }; }
  if (kind === 5) { const at = reader.take(4); return { fixed32: reader.view.getUint32(at, true), float: reader.view.getFloat32(at, true) }; }
  if (kind !== 2) throw new Error("not Protobuf");
  const length = varint(reader);
  if (length > BigInt(reader.bytes.length)) throw new Error("not Protobuf");
  const part = reader.part(Number(length));
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(part);
    if (!/[\u0000-\u0008\u000e-\u001f\u007f]/.test(text)) return text;
  } catch { /* not text */ }
  try { return protobuf(part, depth + 1); } catch { return hexOf(part); }
}
