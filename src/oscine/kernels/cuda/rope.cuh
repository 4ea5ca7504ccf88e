// Norm and rotation of a query or key head.
//
//     x = bf16(bf16(x * rsqrt(mean(x^2) + epsilon)) * scale)                                      per head of 128
//     low' = bf16(bf16(low * cos) - bf16(high * sin)), high' = bf16(bf16(high * cos) + bf16(low * sin))
//
// cos and sin are rounded to bf16. `low` are dimensions 0 .. 63 and `high` 64 .. 127. Eight adjacent lanes share a
// head; each holds 8 adjacent dimensions of both halves.
#include "lanes.cuh"
constexpr int DIM = 128, HALF = DIM / 2;

struct Piece {  // a lane's dimensions of a head, as pairs
  u32 pair[8];
};
FUNCTION Piece piece_of(const uint4& lower, const uint4& upper) {
  return {{lower.x, lower.y, lower.z, lower.w, upper.x, upper.y, upper.z, upper.w}};
}
FUNCTION void store_piece(u16* to, const Piece& x) {
  *(uint4*)to = make_uint4(x.pair[0], x.pair[1], x.pair[2], x.pair[3]);
  *(uint4*)(to + HALF) = make_uint4(x.pair[4], x.pair[5], x.pair[6], x.pair[7]);
}

struct Angles {  // cos and sin of a lane's lower dimensions, as pairs
  u32 cos[4], sin[4];
};
FUNCTION void load_rounded_early(u32 (&pairs)[4], const float* from) {
  const uint4 a = load_early(from), b = load_early(from + 4);
  pairs[0] = pack(of_bits(a.x), of_bits(a.y)), pairs[1] = pack(of_bits(a.z), of_bits(a.w));
  pairs[2] = pack(of_bits(b.x), of_bits(b.y)), pairs[3] = pack(of_bits(b.z), of_bits(b.w));
}

FUNCTION float squares_of(u32 pair, float sum) {
  return multiply_add(high(pair), high(pair), multiply_add(low(pair), low(pair), sum));
}

// Two adjacent dimensions below 64 and the same places above.
FUNCTION void rotate(u32& lower, u32& upper, float inverse, u32 low_scale, u32 high_scale, u32 cos, u32 sin) {
  const u32 a = multiply_pairs(pack(low(lower) * inverse, high(lower) * inverse), low_scale);
  const u32 b = multiply_pairs(pack(low(upper) * inverse, high(upper) * inverse), high_scale);
  const u32 a_cos = multiply_pairs(a, cos), b_sin = multiply_pairs(b, sin);
  const u32 b_cos = multiply_pairs(b, cos), a_sin = multiply_pairs(a, sin);
  lower = pack(low(a_cos) - low(b_sin), high(a_cos) - high(b_sin));
  upper = pack(low(b_cos) + low(a_sin), high(b_cos) + high(a_sin));
}

FUNCTION Piece rotated(Piece x, const Piece& scale, const Angles& angles, float epsilon) {
  float lower = 0.f, upper = 0.f;
#pragma unroll
  for (int i = 0; i < 4; i++) lower = squares_of(x.pair[i], lower), upper = squares_of(x.pair[4 + i], upper);
  const float inverse = inverse_root(sum_of_lanes(lower + upper, 8) * (1.f / DIM) + epsilon);
#pragma unroll
  for (int i = 0; i < 4; i++)
    rotate(x.pair[i], x.pair[4 + i], inverse, scale.pair[i], scale.pair[4 + i], angles.cos[i], angles.sin[i]);
  return x;
}
