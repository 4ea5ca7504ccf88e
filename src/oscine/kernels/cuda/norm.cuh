// RMSNorm with the sum of squares in one order, for the norm inside a product and for the norm of its own.
//
//     y = bf16(bf16(x * rsqrt(mean(x^2) + epsilon)) * scale)
//
// The row is divided into the SEGMENTS of the product that follows. In a segment, lane t of four takes the columns
// 32 step + 8t .. + 7 and adds the squares of even and of odd columns separately; then the four lanes add up in pairs.
// The segments are added in order.
FUNCTION void add_squares(float (&sums)[2], const uint4& v) {
  const u32 pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    sums[0] = multiply_add(low(pairs[i]), low(pairs[i]), sums[0]);
    sums[1] = multiply_add(high(pairs[i]), high(pairs[i]), sums[1]);
  }
}

FUNCTION float sum_of_four_lanes(const float (&sums)[2]) {
  float sum = sums[0] + sums[1];
  sum += shuffle_xor(sum, 1);
  return sum + shuffle_xor(sum, 2);
}

FUNCTION u32 normed(u32 pair, float inverse, u32 scale) {
  return multiply_pairs(pack(low(pair) * inverse, high(pair) * inverse), scale);
}

FUNCTION uint4 normed(const uint4& v, float inverse, const uint4& scale) {
  uint4 out;
  out.x = normed(v.x, inverse, scale.x);
  out.y = normed(v.y, inverse, scale.y);
  out.z = normed(v.z, inverse, scale.z);
  out.w = normed(v.w, inverse, scale.w);
  return out;
}
