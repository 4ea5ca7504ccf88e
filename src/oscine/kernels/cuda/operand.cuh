// The second operand of wgmma in shared memory: rows of 64 columns (128 bytes), eight of them in 1024 bytes that start at
// a multiple of 1024. Piece p (16 bytes) of row r is at piece p ^ (r % 8), so that pieces of a column are in different
// banks; the hardware calls this the swizzle of 128 bytes.
constexpr int OPERAND_WIDTH = 64, OPERAND_ROW_BYTES = 128;

FUNCTION char* operand_piece(char* tile, int row, int piece) {
  return tile + row * OPERAND_ROW_BYTES + ((piece ^ (row & 7)) << 4);
}

// The matrix descriptor of 16 columns, `column` columns to the right of the first. In units of 16 bytes: the address,
// an offset that is not used with this swizzle, the offset of the next eight rows; then the kind of swizzle.
FUNCTION u64 operand_descriptor(const char* tile, int column) {
  const u32 address = shared_address(tile) + column * 2;
  return (u64)((address & 0x3ffff) >> 4) | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}

// Lane t's 16 bytes of a row belong to two instructions (linear.cuh). For the second operand, the four pieces of 32
// columns, as a matrix of 4 x 4 pairs of columns, are transposed in place; `piece` is the first of them.
FUNCTION void transpose_operand(char* tile, int row, int piece) {
  char* at[4];
#pragma unroll
  for (int i = 0; i < 4; i++) at[i] = operand_piece(tile, row, piece + i);
  const uint4 a = *(const uint4*)at[0], b = *(const uint4*)at[1], c = *(const uint4*)at[2], d = *(const uint4*)at[3];
  store_operand(at[0], make_uint4(a.x, b.x, c.x, d.x));
  store_operand(at[1], make_uint4(a.y, b.y, c.y, d.y));
  store_operand(at[2], make_uint4(a.z, b.z, c.z, d.z));
  store_operand(at[3], make_uint4(a.w, b.w, c.w, d.w));
}
