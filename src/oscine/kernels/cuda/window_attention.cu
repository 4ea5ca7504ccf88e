// Attention of the codec's stack over a sliding window of frames: one new frame per row, one warp per row and head.
//
//     out = bf16(softmax(q . k / sqrt(DIM)) @ v)                                                       fp32 sums
//     low' = low * cos - high * sin, high' = high * cos + low * sin        of q, in fp32, and of k, rounded to bf16
//
// The keys (after their rotation) and values of a slot are rings of WINDOW places; frame n is at n modulo WINDOW. Eight
// lanes share a place and have 8 dimensions each, so a warp has four places at a time. It holds all of them in
// registers, and requests them before the wait: earlier frames have written them. Slots, positions, cos and sin were
// written before the last launch that was not programmatic: the convolution into the stack.
//
// Defines: HEADS, WINDOW, OUT_IN_TILES. Grid: heads, rows.
#include "device.cuh"
#include "lanes.cuh"
#include "tiles.cuh"

constexpr int DIM = 64, HALF = DIM / 2, WIDTH = HEADS * DIM;
constexpr int LANES = DIM / 8, AT_ONCE = 32 / LANES, PLACES = (WINDOW + AT_ONCE - 1) / AT_ONCE;
constexpr float LOWEST = -1e30f, LOG2_E = 1.44269504f;  // softmax with powers of two

struct Arguments {
  const u16* qkv;                // [rows][3][HEADS][DIM]
  const float *cos, *sin;        // [rows][HALF]
  const int *slots, *positions;  // [rows]
  u16 *keys, *values;            // [slots][HEADS][WINDOW][DIM]
  u16* out;                      // [rows][HEADS * DIM], or in tiles
  int qkv_stride, out_stride, slot_stride;
  float scale;
};

struct Eight {  // a lane's dimensions
  float x[8];
};
FUNCTION Eight widened(const uint4& v) {
  return {{low(v.x), high(v.x), low(v.y), high(v.y), low(v.z), high(v.z), low(v.w), high(v.w)}};
}
FUNCTION uint4 packed(const Eight& v) {
  return make_uint4(pack(v.x[0], v.x[1]), pack(v.x[2], v.x[3]), pack(v.x[4], v.x[5]), pack(v.x[6], v.x[7]));
}
FUNCTION Eight load_eight_early(const float* from) {
  const uint4 a = load_early(from), b = load_early(from + 4);
  return {{of_bits(a.x), of_bits(a.y), of_bits(a.z), of_bits(a.w), of_bits(b.x), of_bits(b.y), of_bits(b.z),
           of_bits(b.w)}};
}

// The lane's dimensions from `first` on; the other half has those that they are rotated with.
FUNCTION Eight rotated(const u16* head, int first, const Eight& cos, const Eight& sin) {
  const Eight own = widened(load(head + first)), other = widened(load(head + (first ^ HALF)));
  const float sign = first < HALF ? -1.f : 1.f;
  Eight turned;
#pragma unroll
  for (int i = 0; i < 8; i++) turned.x[i] = own.x[i] * cos.x[i] + sign * other.x[i] * sin.x[i];
  return turned;
}

KERNEL(window_attention, 32) {
  const Arguments& p = arguments;
  const int head = block_x(), row = block_y(), group = thread_index() / LANES, first = thread_index() % LANES * 8;
  let_next_start();
  const int position = load_int_early(p.positions + row), here = position % WINDOW;
  const u64 cache = (u64)load_int_early(p.slots + row) * p.slot_stride + (head * WINDOW + group) * DIM + first;
  auto place_of = [&](int i) { return i * AT_ONCE + group; };
  // Before the ring wraps for the first time, later places belong to another stream.
  auto is_old = [&](int i) { return place_of(i) < WINDOW && place_of(i) <= position && place_of(i) != here; };
  uint4 keys[PLACES], values[PLACES];
#pragma unroll
  for (int i = 0; i < PLACES; i++) keys[i] = load_early_if(is_old(i), p.keys + cache + i * AT_ONCE * DIM);
#pragma unroll
  for (int i = 0; i < PLACES; i++) values[i] = load_early_if(is_old(i), p.values + cache + i * AT_ONCE * DIM);
  const Eight cos = load_eight_early(p.cos + row * HALF + first % HALF);
  const Eight sin = load_eight_early(p.sin + row * HALF + first % HALF);
  wait_for_previous();

  const u16* const own = p.qkv + (u64)row * p.qkv_stride + head * DIM;
  const Eight query = rotated(own, first, cos, sin);
  const uint4 new_key = packed(rotated(own + WIDTH, first, cos, sin)), new_value = load(own + 2 * WIDTH + first);
  float weights[PLACES], peak = LOWEST;
#pragma unroll
  for (int i = 0; i < PLACES; i++) {
    const bool is_new = place_of(i) == here;
    if (is_new) keys[i] = new_key, values[i] = new_value;
    const Eight key = widened(keys[i]);
    float product = 0.f;
#pragma unroll
    for (int d = 0; d < 8; d++) product = multiply_add(query.x[d], key.x[d], product);
    product = sum_of_lanes(product, LANES) * (p.scale * LOG2_E);
    weights[i] = is_new || is_old(i) ? product : LOWEST;
    peak = larger(peak, weights[i]);
  }
#pragma unroll
  for (int mask = LANES; mask < 32; mask *= 2) peak = larger(peak, shuffle_xor(peak, mask));

  float total = 0.f;
  Eight mixed = {};
#pragma unroll
  for (int i = 0; i < PLACES; i++) {
    const float weight = power_of_two(weights[i] - peak);  // 0 for LOWEST
    const Eight value = widened(values[i]);
    total += weight;
#pragma unroll
    for (int d = 0; d < 8; d++) mixed.x[d] = multiply_add(weight, value.x[d], mixed.x[d]);
  }
#pragma unroll
  for (int mask = LANES; mask < 32; mask *= 2) {
    total += shuffle_xor(total, mask);
#pragma unroll
    for (int d = 0; d < 8; d++) mixed.x[d] += shuffle_xor(mixed.x[d], mask);
  }
#pragma unroll
  for (int d = 0; d < 8; d++) mixed.x[d] = quotient(mixed.x[d], total);

  const int column = head * DIM + first;
  if (OUT_IN_TILES) store_tile_piece(p.out, row, column, p.out_stride, packed(mixed));  // the same from all groups
  if (group) return;
  if (!OUT_IN_TILES) *(uint4*)(p.out + (u64)row * p.out_stride + column) = packed(mixed);
  *(uint4*)(p.keys + cache + here * DIM) = new_key;
  *(uint4*)(p.values + cache + here * DIM) = new_value;
}
