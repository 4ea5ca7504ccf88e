// Sums over adjacent lanes of a warp; all of them get the result.
FUNCTION float sum_of_lanes(float x, int count) {
#pragma unroll
  for (int mask = 1; mask < count; mask *= 2) x += shuffle_xor(x, mask);
  return x;
}
