// The hash of a row, for host and device; digests (row_worker.h) are sums of these.
//
//   row of 64-bit words w_k:  mix64(sum over k of hash_word(w_k, word_key(k)) + row_name(...))
#pragma once
#include <cstdint>

#include "core/random.h"

namespace longnet {

// Finaliser of splitmix64.
LONGNET_HOST_DEVICE inline uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// The addends a_k (low half) and b_k (high half) of a row's k-th word.
LONGNET_HOST_DEVICE inline uint64_t word_key(uint64_t k) {
  return mix64((k + 1) * 0x9E3779B97F4A7C15u);
}

LONGNET_HOST_DEVICE inline uint64_t hash_word(uint64_t w, uint64_t key) {
  return uint64_t{uint32_t(w) + uint32_t(key)} * uint64_t{uint32_t(w >> 32) + uint32_t(key >> 32)};
}

// `token` counts through the whole batch, as in RowKey.
LONGNET_HOST_DEVICE inline uint64_t row_name(uint32_t tensor, int64_t head, int64_t token) {
  return mix64(uint64_t(token) * 0x9E3779B97F4A7C15u + (uint64_t(head) << 2 | tensor));
}

inline constexpr uint32_t kOutputTensor = 3;  // beside those of enum Tensor

// Hash of an output row whose words hash to `words` and whose LSE has these bits (0 without one).
LONGNET_HOST_DEVICE inline uint64_t output_row_hash(uint64_t words, uint32_t lse_bits, int64_t head,
                                                    int64_t token) {
  return mix64(mix64(words + lse_bits) + row_name(kOutputTensor, head, token));
}

}  // namespace longnet
