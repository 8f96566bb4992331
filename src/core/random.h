// Counter-based generator: any rank, device or checker makes any row of Q, K and V, bit for bit.
//
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) maps
//   counter = (token low, token high, head | tensor << 24, lane / 4),  key = seed
// to four 32-bit words, one per lane. A word becomes a number by integer steps and one exactly
// rounded multiplication, so CPU and GPU agree in every bit: the sum of its four bytes is nearly
// normal (Irwin-Hall), has mean 510 and variance 4 (256^2 - 1) / 12, and is scaled to variance 1.
#pragma once
#include <cstdint>

#if defined(__CUDACC__)
#define LONGNET_HOST_DEVICE __host__ __device__
#else
#define LONGNET_HOST_DEVICE
#endif

namespace longnet {

// 3 is the output's place among digests (kernels/row_worker.h).
enum class Tensor : uint32_t { kQuery = 0, kKey = 1, kValue = 2, kGradOut = 4 };

// Product of two words, by one instruction on a GPU, whose compiler would multiply 64-bit factors.
LONGNET_HOST_DEVICE inline uint64_t wide_product(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
#else
  return uint64_t{a} * uint64_t{b};
#endif
}

struct PhiloxBlock {
  uint32_t word[4];
};

LONGNET_HOST_DEVICE inline PhiloxBlock philox4x32_10(PhiloxBlock counter, uint32_t key0,
                                                     uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = wide_product(0xD2511F53u, counter.word[0]);
    const uint64_t b = wide_product(0xCD9E8D57u, counter.word[2]);
    counter = {{uint32_t(b >> 32) ^ counter.word[1] ^ key0, uint32_t(b),
                uint32_t(a >> 32) ^ counter.word[3] ^ key1, uint32_t(a)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

inline constexpr int kMeanOfWord = 510;               // mean sum of its bytes
inline constexpr float kUnitOfWord = 0.00676587509f;  // 1 / sqrt(4 * (256^2 - 1) / 12)

LONGNET_HOST_DEVICE inline float unit_normal_like(uint32_t word) {
  const int32_t sum = int32_t(word & 0xFF) + int32_t(word >> 8 & 0xFF) +
                      int32_t(word >> 16 & 0xFF) + int32_t(word >> 24);
  return float(sum - kMeanOfWord) * kUnitOfWord;
}

// Round to nearest, ties to even: what hardware conversions do, by integer steps. Not for NaN.
LONGNET_HOST_DEVICE inline uint16_t bf16_bits(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  return uint16_t((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}
LONGNET_HOST_DEVICE inline float bf16_value(uint16_t bits) {
  return __builtin_bit_cast(float, uint32_t{bits} << 16);
}

// Names one row of one tensor: `token` counts through the whole batch (b * seq_len + t).
struct RowKey {
  uint64_t seed;
  Tensor tensor;
  int64_t token;
  int64_t head;
};

// The words of lanes 4 * quad to 4 * quad + 3 of the row.
LONGNET_HOST_DEVICE inline PhiloxBlock row_words(const RowKey& key, int64_t quad) {
  const uint64_t token = uint64_t(key.token);
  return philox4x32_10({{uint32_t(token), uint32_t(token >> 32),
                         uint32_t(key.head) | uint32_t(key.tensor) << 24, uint32_t(quad)}},
                       uint32_t(key.seed), uint32_t(key.seed >> 32));
}

// Calls store(lane, value) for the lanes [0, lanes) of the row; lanes is a multiple of 4.
template <class Store>
void for_each_lane(const RowKey& key, int64_t lanes, Store store) {
  for (int64_t lane = 0; lane < lanes; lane += 4) {
    const PhiloxBlock block = row_words(key, lane / 4);
    for (int i = 0; i < 4; ++i) store(lane + i, unit_normal_like(block.word[i]));
  }
}
inline void generate_row(const RowKey& key, int64_t lanes, float* out) {
  for_each_lane(key, lanes, [out](int64_t lane, float x) { out[lane] = x; });
}
inline void generate_row(const RowKey& key, int64_t lanes, uint16_t* out) {
  for_each_lane(key, lanes, [out](int64_t lane, float x) { out[lane] = bf16_bits(x); });
}

}  // namespace longnet
