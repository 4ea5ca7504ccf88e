// Norm and rotation of a query or key head.
//
//     x = bf16(bf16(x * rsqrt(mean(x^2) + epsilon)) * scale)                                      per head of 128
//     low' = bf16(bf16(low * cos) - bf16(high * sin)), high' = bf16(bf16(high * cos) + bf16(low * sin))
//
// cos and sin are rounded to bf16. `low` are dimensions 0 .. 63 and `high` 64 .. 127; a lane holds the same places of
// both.
constexpr int DIM = 128, HALF = DIM / 2;

FUNCTION u32 load_rounded_pair_early(const float* from) {
  return pack(load_float_early(from), load_float_early(from + 1));
}

FUNCTION float squares_of(u32 pair, float sum) {
  return multiply_add(high(pair), high(pair), multiply_add(low(pair), low(pair), sum));
}

FUNCTION float inverse_of_head(float squares, float epsilon) { return inverse_root(squares * (1.f / DIM) + epsilon); }

// Two adjacent dimensions below 64 and the same places above.
FUNCTION void rotate(u32& lower, u32& upper, float inverse, u32 low_scale, u32 high_scale, u32 cos, u32 sin) {
  const u32 a = multiply_pairs(pack(low(lower) * inverse, high(lower) * inverse), low_scale);
  const u32 b = multiply_pairs(pack(low(upper) * inverse, high(upper) * inverse), high_scale);
  const u32 a_cos = multiply_pairs(a, cos), b_sin = multiply_pairs(b, sin);
  const u32 b_cos = multiply_pairs(b, cos), a_sin = multiply_pairs(a, sin);
  lower = pack(low(a_cos) - low(b_sin), high(a_cos) - high(b_sin));
  upper = pack(low(b_cos) + low(a_sin), high(b_cos) + high(a_sin));
}
