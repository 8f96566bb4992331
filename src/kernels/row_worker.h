// Work on the rows of one device beside attention: making inputs, summing up outputs, poisoning.
//
//   fill:       rows of Q, K or V from the counter-based generator (core/random.h), bit for bit;
//               optionally with their digest
//   summarize:  sums, extremes and a digest of O and LSE, so that an output too large to keep can
//               still be compared
//   poison:     every byte 0xFF, a NaN in fp32 and bf16
//
// Digests do not depend on the order of rows, threads or vector widths: the sum, modulo 2^64, of
// one hash per row over (tensor, head, token) and the row's bits. The row's part is
//   sum over k of (low(w_k) + a_k) (high(w_k) + b_k)   for its 64-bit words w_k
// (NH of Black et al., "UMAC: fast and secure message authentication", CRYPTO 1999), mixed with the
// row's name by splitmix64's finaliser (Steele et al., OOPSLA 2014).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/output_summary.h"
#include "core/problem.h"
#include "core/random.h"

namespace longnet {

// ---- the hash of a row, for host and device ----
//
//   row of 64-bit words w_k:  mix64(sum over k of hash_word(w_k, word_key(k)) + row_name(...))

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
  return wide_product(uint32_t(w) + uint32_t(key), uint32_t(w >> 32) + uint32_t(key >> 32));
}

// `token` counts through the whole batch, as in RowKey. A tensor's third bit is the topmost one,
// apart from those of the head.
LONGNET_HOST_DEVICE inline uint64_t row_name(uint32_t tensor, int64_t head, int64_t token) {
  const uint64_t place = uint64_t(tensor >> 2) << 63 | uint64_t(head) << 2 | (tensor & 3);
  return mix64(uint64_t(token) * 0x9E3779B97F4A7C15u + place);
}

inline constexpr uint32_t kOutputTensor = 3;  // which no value of enum Tensor is

// Hash of an output row whose words hash to `words` and whose LSE has these bits (0 without one).
LONGNET_HOST_DEVICE inline uint64_t output_row_hash(uint64_t words, uint32_t lse_bits, int64_t head,
                                                    int64_t token) {
  return mix64(mix64(words + lse_bits) + row_name(kOutputTensor, head, token));
}

// ---- work on rows ----

// Row i is that of token first_token + i * token_step, at out + i * row_stride elements. Tokens
// count through the whole batch, as in RowKey.
struct FillRows {
  Tensor tensor = Tensor::kQuery;
  int64_t head = 0, first_token = 0, token_step = 1, rows = 0;
  void* out = nullptr;
  int64_t row_stride = 0;
};

struct OutputRows {
  const float* o = nullptr;
  const float* lse = nullptr;            // null: the output has none
  int64_t o_stride = 0, lse_stride = 0;  // floats, as of PartialRun
  int64_t head = 0, first_token = 0, token_step = 1, rows = 0;
  DType dtype = DType::kFloat32;  // type of O; sums and digest are those of its values in fp32
};

struct RowFormat {
  uint64_t seed = 1;
  int64_t head_dim = 64;
  DType dtype = DType::kFloat32;
};

class RowWorker {
 public:
  virtual ~RowWorker() = default;
  // `digest`, when given, grows by the digest of the rows. `poisoned`, apart from the rows, is
  // poisoned: by a GPU at the same time.
  virtual void fill(std::span<const FillRows> tasks, const RowFormat& format, int threads,
                    uint64_t* digest = nullptr,
                    std::span<const std::span<std::byte>> poisoned = {}) const = 0;
  // The digest alone, of rows that are there.
  virtual uint64_t digest(std::span<const FillRows> tasks, const RowFormat& format,
                          int threads) const = 0;
  // summaries[i] = the summary of tasks[i]. The same bits for any number of threads.
  virtual void summarize(std::span<const OutputRows> tasks, int64_t head_dim, int threads,
                         std::span<OutputSummary> summaries) const = 0;
  virtual void poison(std::span<std::byte> bytes, int threads) const = 0;
};

// Makes the worker for rows in host memory.
std::unique_ptr<RowWorker> make_cpu_row_worker();

}  // namespace longnet
