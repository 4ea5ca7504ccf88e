// Samples one code per row from bf16 logits, and looks up the predictor's next input by that code.
//
//     code 0:  x = logit < 0 ? logit * p : logit / p for ids seen before; ids that are not codes are excluded, but for
//              end-of-speech, once it may come
//     greedy:  the id of the largest x, the first of equals
//     else:    x / temperature; keep the k largest and ties with the k-th; drop the least likely ids that together hold
//              at most the tail (equals in the order of ids), but never the likeliest; softmax; the first id whose
//              cumulative mass is above u * total
//     u = 24 bits of word 0 of Philox4x32-10, counter (frame, codebook, 0, 0), key the two halves of the seed
//     next_x[r] = inputs[code],  next_qkv[r] = first_qkv[code]
//
// NaN and infinity fail the row and count as 0, so that every code is a valid index. Divisions are IEEE; sums run in
// fp64, in a fixed order, and are rounded to fp32 before comparisons: the rules of kernels/sample.py.
//
// A block per row, eight adjacent ids per thread. The key of a number is its bits, in the order of the numbers: 16 of a
// bf16 number, since temperature keeps order and ties, and all 32 after a repetition penalty. Bits of the k-th largest
// key are found two at a time: a sum counts the keys that are not below three candidates.
//
// It lets the next kernel start only after its own wait: then all kernels of this pass have ended, and the next pass may
// read their keys and values before it waits. What it reads before the wait was written before this frame.
//
// Defines: IDS, FIRST (1: code 0), X_WIDTH, QKV_WIDTH (0: no such look-up). Grid: rows.
#include "device.cuh"

constexpr int OWN = 8;  // ids of a thread
constexpr int WARPS = (IDS + OWN * 32 - 1) / (OWN * 32), THREADS = WARPS * 32;
constexpr int KEY_BITS = FIRST ? 32 : 16, UNUSED_BITS = 32 - KEY_BITS;
constexpr int NEAR_BITS = FIRST ? 22 : 6;  // half a binade: the first distance from the highest key that is looked at
static_assert(IDS % OWN == 0 && WARPS <= 32, "ids in groups of eight, one block");
static_assert(X_WIDTH % 8 == 0 && QKV_WIDTH % 8 == 0, "rows of whole pieces of 16 bytes");

struct Arguments {
  const u16* logits;  // [rows][IDS]
  const u64* slots;   // [rows]; rows with a negative slot keep everything
  u64* codes;         // [rows], `code_stride` apart
  u16* failed;        // [rows]
  const float *temperature, *tail;                            // of a slot
  const u64 *top_k, *greedy, *seed_low, *seed_high, *frame;  // of a slot
  const u16 *inputs, *first_qkv;                              // [ids][X_WIDTH], [ids][QKV_WIDTH]
  u16 *next_x, *next_qkv;                                     // [rows][X_WIDTH], [rows][QKV_WIDTH]
  // Of code 0. Only ids below `code_count` are codes.
  const float* penalty;  // of a slot
  const u64* hold_eos;   // of a slot; not 0: speech must not end
  unsigned char* seen;   // [slots][IDS], `seen_stride` apart; not 0: drawn before
  int book, logits_stride, code_stride, x_stride, qkv_stride;
  int code_count, eos, min_frames, seen_stride;  // of code 0
};

// Sums and maxima over the block, each with one barrier. A buffer is used again only after another barrier.
struct Block {
  u64 (*parts)[WARPS];  // two buffers
  int warp, lane, turn = 0;

  FUNCTION const u64* exchange(u64 own) {
    if (lane == 0) parts[turn][warp] = own;
    sync_block();
    turn ^= 1;
    return parts[turn ^ 1];
  }
  FUNCTION u32 sum(u32 value) {
    const u64* const all = exchange(warp_sum(value));
    u32 total = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) total += (u32)all[i];
    return total;
  }
  FUNCTION u64 largest(u64 value) {
    const u32 high = warp_largest((u32)(value >> 32));
    const u32 low = warp_largest((u32)(value >> 32) == high ? (u32)value : 0);
    const u64* const all = exchange((u64)high << 32 | low);
    u64 best = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) best = all[i] > best ? all[i] : best;
    return best;
  }
  FUNCTION u32 largest(u32 value) {
    const u64* const all = exchange(warp_largest(value));
    u32 best = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) best = (u32)all[i] > best ? (u32)all[i] : best;
    return best;
  }
  // The sum of all threads before this one; `total` of all. `value` is the thread's own.
  FUNCTION double before(double value, double& total) {
    double inclusive = value;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const double other = shuffle_up(inclusive, distance);
      if (lane >= distance) inclusive = other + inclusive;
    }
    const double of_warp = shuffle_from(inclusive, 31);
    const u64* const all = exchange(bits_of_double(of_warp));
    double start = 0.0;
    total = 0.0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
      if (i == warp) start = total;
      total += double_of_bits(all[i]);
    }
    const double previous = shuffle_up(inclusive, 1);
    return lane ? start + previous : start;
  }
  FUNCTION double sum(double value) {
    double total;
    before(value, total);
    return total;
  }
};

// The upper fp32 bits in the order of the numbers; both zeros are equal.
FUNCTION u32 key_of(float x) {
  const u32 bits = x == 0.f ? 0 : bits_of(x);
  return (bits >> 31 ? ~bits : bits | 0x80000000u) >> UNUSED_BITS;
}
FUNCTION float of_key(u32 key) {
  const bool negative = key >> (KEY_BITS - 1) == 0;
  return of_bits(negative ? ~key << UNUSED_BITS : key << UNUSED_BITS & 0x7fffffffu);
}

// A key, then its id counted backwards: of equal keys, the first is the largest.
#if FIRST
typedef u64 Ranked;
#else
typedef u32 Ranked;
#endif
constexpr Ranked LAST_ID = (Ranked)~(Ranked)0 >> KEY_BITS;
FUNCTION Ranked ranked(u32 key, int id) { return (Ranked)key << (sizeof(Ranked) * 8 - KEY_BITS) | (LAST_ID - id); }

// How many keys are not below each candidate.
FUNCTION void count_from(Block& block, const u32 (&key)[OWN], const u32 (&candidate)[3], u32 (&totals)[3]) {
  u32 counts = 0;  // three of 10 bits: a warp has at most 256 keys
#pragma unroll
  for (int i = 0; i < OWN; i++)
#pragma unroll
    for (int c = 0; c < 3; c++) counts += (u32)(key[i] >= candidate[c]) << 10 * c;
  counts = warp_sum(counts);
  // In 16 bits each, all warps' counts can be added at once.
  const u64* const all = block.exchange((u64)(counts >> 20) << 32 | (counts >> 10 & 0x3ff) << 16 | (counts & 0x3ff));
  u64 total = 0;
#pragma unroll
  for (int i = 0; i < WARPS; i++) total += all[i];
#pragma unroll
  for (int c = 0; c < 3; c++) totals[c] = (u32)(total >> 16 * c) & 0xffff;
}

// The k-th largest key, or a smaller one that is above the next. It is searched near the highest key, if it is there.
FUNCTION u32 border_of(Block& block, const u32 (&key)[OWN], u32 highest, u32 k) {
  u32 best = 0, candidate[3], totals[3];
  int bits = KEY_BITS;  // `best` and the next 2^bits - 1 keys are searched
#pragma unroll
  for (int c = 0; c < 3; c++) {
    const u32 reach = (1u << (NEAR_BITS + 2 * c)) - 1;
    candidate[c] = highest > reach ? highest - reach : 0xffffffffu;
  }
  count_from(block, key, candidate, totals);
#pragma unroll
  for (int c = 2; c >= 0; c--)
    if (totals[c] >= k) bits = NEAR_BITS + 2 * c, best = candidate[c];
#pragma unroll 1
  for (int shift = bits - 2; shift >= 0; shift -= 2) {
#pragma unroll
    for (u32 c = 0; c < 3; c++) candidate[c] = best + ((c + 1) << shift);
    count_from(block, key, candidate, totals);
#pragma unroll
    for (int c = 0; c < 3; c++)
      if (totals[c] >= k) best = candidate[c];
    if (totals[0] == k || totals[1] == k || totals[2] == k) break;
  }
  return best;
}

// Softmax over the kept ids. The likeliest one is always kept, so `maximum` is theirs.
FUNCTION void find_shares(Block& block, const float (&x)[OWN], const bool (&keep)[OWN], float maximum,
                          float (&share)[OWN]) {
  double own = 0.0;
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    share[i] = keep[i] ? exponential(x[i] - maximum) : 0.f;
    own += (double)share[i];
  }
  const float total = (float)block.sum(own);
#pragma unroll
  for (int i = 0; i < OWN; i++) share[i] = divide(share[i], total);
}

FUNCTION double share_below(Block& block, const u32 (&key)[OWN], const float (&share)[OWN], u32 border) {
  double own = 0.0;
#pragma unroll
  for (int i = 0; i < OWN; i++)
    if (key[i] < border) own += (double)share[i];
  return block.sum(own);
}

// Drops the least likely ids that together hold at most `tail`.
FUNCTION void keep_nucleus(Block& block, const u32 (&key)[OWN], const float (&share)[OWN], u32 highest, float tail,
                           int first, bool (&keep)[OWN]) {
  u32 border = 0;  // the largest key for which all smaller ones hold at most `tail`
#pragma unroll 1
  for (int bit = KEY_BITS - 1; bit >= 0; bit--) {
    const u32 larger = border | 1u << bit;
    if ((float)share_below(block, key, share, larger) <= tail) border = larger;
  }
  border = border < highest ? border : highest;
  const double below = share_below(block, key, share, border);
  double own = 0.0, total;
  u32 last = 0;  // 1 + the last id with the highest key
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    if (key[i] == border) own += (double)share[i];
    if (key[i] == highest && keep[i]) last = first + i + 1;
  }
  double tied = below + block.before(own, total);
  const u32 likeliest = block.largest(last);
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    if (key[i] == border) tied += (double)share[i];
    const bool drop = key[i] < border || (key[i] == border && (float)tied <= tail);
    keep[i] = keep[i] && (!drop || first + i + 1 == (int)likeliest);
  }
}

FUNCTION float uniform(u32 seed_low, u32 seed_high, u32 frame, u32 book) {
  u32 c0 = frame, c1 = book, c2 = 0, c3 = 0;
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const u32 a = c0, b = c2;
    c0 = multiply_high(0xCD9E8D57u, b) ^ c1 ^ seed_low;
    c2 = multiply_high(0xD2511F53u, a) ^ c3 ^ seed_high;
    c1 = 0xCD9E8D57u * b;
    c3 = 0xD2511F53u * a;
    seed_low += 0x9E3779B9u;
    seed_high += 0xBB67AE85u;
  }
  return (float)(c0 >> 8) * 5.9604644775390625e-08f;  // 2^-24
}

KERNEL(sample, THREADS) {
  const Arguments& p = arguments;
  const int row = block_x(), thread = thread_index(), first = thread * OWN;
  const long long slot = (long long)load_index_early(p.slots + row);
  const u64 at = slot < 0 ? 0 : slot;
  const float temperature = load_float_early(p.temperature + at), tail = load_float_early(p.tail + at);
  const bool greedy = load_index_early(p.greedy + at) != 0;
  const u64 top_k = load_index_early(p.top_k + at), frame = load_index_early(p.frame + at);
  const float u = uniform((u32)load_index_early(p.seed_low + at), (u32)load_index_early(p.seed_high + at), (u32)frame,
                          p.book);
  const bool has = first < IDS;
  u64 seen = 0;  // a byte per id
  float penalty = 1.f;
  bool may_end = false;
  if (FIRST) {
    if (has) seen = load_index_early((const u64*)(p.seen + at * p.seen_stride + first));
    penalty = load_float_early(p.penalty + at);
    may_end = frame >= p.min_frames && load_index_early(p.hold_eos + at) == 0;
  }
  wait_for_previous();
  let_next_start();
  if (slot < 0) return;

  Block block{(u64(*)[WARPS])shared_memory(), thread / 32, thread % 32};
  const uint4 raw = has ? load(p.logits + (u64)row * p.logits_stride + first) : make_uint4(0, 0, 0, 0);
  const u32 pairs[4] = {raw.x, raw.y, raw.z, raw.w};
  float x[OWN];
  const float infinite = of_bits(0x7f800000u);
  u32 key[OWN];
  Ranked best = 0;
  bool keep[OWN], bad = false;
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    x[i] = i % 2 ? high(pairs[i / 2]) : low(pairs[i / 2]);
    if (!(x[i] < infinite)) bad = true, x[i] = 0.f;
    if (FIRST) {
      if (seen >> 8 * i & 0xff) x[i] = x[i] < 0.f ? x[i] * penalty : divide(x[i], penalty);
      if (first + i >= p.code_count && !(first + i == p.eos && may_end)) x[i] = -infinite;
    }
    key[i] = has ? key_of(x[i]) : 0;
    keep[i] = has;
    if (has && ranked(key[i], first + i) > best) best = ranked(key[i], first + i);
  }
  if (FIRST && thread == 0) p.failed[row] = 0;
  best = block.largest(best);  // its barrier is between both stores
  if (bad) p.failed[row] = 1;
  u32 code = (u32)(LAST_ID - (best & LAST_ID));
  if (!greedy) {
    u32 highest = (u32)(best >> (sizeof(Ranked) * 8 - KEY_BITS));
    const float maximum = divide(of_key(highest), temperature);
#pragma unroll
    for (int i = 0; i < OWN; i++) {
      x[i] = divide(x[i], temperature);
      if (FIRST && has) key[i] = key_of(x[i]);  // a division may make equals
    }
    if (FIRST) highest = key_of(maximum);
    if (top_k > 0) {
      const u32 border = border_of(block, key, highest, top_k < IDS ? (u32)top_k : IDS);
#pragma unroll
      for (int i = 0; i < OWN; i++) keep[i] = keep[i] && key[i] >= border;
    }
    float share[OWN];
    find_shares(block, x, keep, maximum, share);
    if (tail > 0.f) {
      keep_nucleus(block, key, share, highest, tail, first, keep);
      find_shares(block, x, keep, maximum, share);
    }
    double own = 0.0, all;
#pragma unroll
    for (int i = 0; i < OWN; i++) own += (double)share[i];
    double mass = block.before(own, all);
    // Rounding must not raise the target to the total: no id would be above it.
    const float total = (float)all, below_total = of_bits(bits_of(total) - 1), wanted = u * total;
    const float target = wanted < below_total ? wanted : below_total;
    u32 not_above = 0;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
      mass += (double)share[i];
      not_above += has && (float)mass <= target;
    }
    code = block.sum(not_above);
  }
  if (thread == 0) {
    p.codes[(u64)row * p.code_stride] = code;
    if (FIRST) p.seen[at * p.seen_stride + code] = 1;
  }
#pragma unroll
  for (int i = thread * 8; i < X_WIDTH; i += THREADS * 8)
    *(uint4*)(p.next_x + (u64)row * p.x_stride + i) = load(p.inputs + (u64)code * X_WIDTH + i);
#pragma unroll
  for (int i = thread * 8; i < QKV_WIDTH; i += THREADS * 8)
    *(uint4*)(p.next_qkv + (u64)row * p.qkv_stride + i) = load(p.first_qkv + (u64)code * QKV_WIDTH + i);
}
