// Where a product for many rows finds x, and where the kernels before it store it: [columns / 64][rows][64], so that the
// rows of a tile of the product are one piece of memory, in the order in which tensor cores read it.
//
// A row's 64 columns are 8 pieces of 16 bytes. Two steps change their order. Lane t's 16 bytes of a weight row belong to
// two instructions (linear.cuh), so each 32 columns are 4 x 4 pairs of columns that are transposed. Piece p of row r is
// at piece p ^ (r % 8), so that pieces of a column are in different banks; the hardware calls this the swizzle of 128
// bytes. kernels/cuda/program.py says the same in PyTorch.
constexpr int TILE_WIDTH = 64;

// `stride`: elements from one 64 columns to the next.
FUNCTION u32* pair_in_tile(u16* x, int row, int column, int stride) {
  const int piece = (column & 32) >> 3 | (column & 6) >> 1, word = (column & 24) >> 3;
  u16* const tile = x + (u64)(column / TILE_WIDTH) * stride + row * TILE_WIDTH;
  return (u32*)(tile + ((piece ^ (row & 7)) << 3) + word * 2);
}

// Two adjacent pairs of columns of a row; in tiles or in rows.
template <bool IN_TILES>
FUNCTION void store_two_pairs(u16* x, int row, int column, int stride, const uint2& pairs) {
  if (IN_TILES) {
    *pair_in_tile(x, row, column, stride) = pairs.x;
    *pair_in_tile(x, row, column + 2, stride) = pairs.y;
  } else {
    *(uint2*)(x + (u64)row * stride + column) = pairs;
  }
}

// 32 columns of a row, of which lane t of four adjacent lanes has the 8 from `column` on, a multiple of 8: the lanes
// transpose their pairs, and each stores a piece. All lanes of the warp take part.
FUNCTION void store_tile_piece(u16* x, int row, int column, int stride, uint4 pairs) {
  const int lane = (column & 24) >> 3;
  const bool odd = lane & 1, upper = lane & 2;
  const u32 a = shuffle_xor(odd ? pairs.x : pairs.y, 1), b = shuffle_xor(odd ? pairs.z : pairs.w, 1);
  pairs = odd ? make_uint4(a, pairs.y, b, pairs.w) : make_uint4(pairs.x, a, pairs.z, b);
  const u32 c = shuffle_xor(upper ? pairs.x : pairs.z, 2), d = shuffle_xor(upper ? pairs.y : pairs.w, 2);
  pairs = upper ? make_uint4(c, d, pairs.z, pairs.w) : make_uint4(pairs.x, pairs.y, c, d);
  *(uint4*)pair_in_tile(x, row, (column & ~31) + lane * 2, stride) = pairs;
}
