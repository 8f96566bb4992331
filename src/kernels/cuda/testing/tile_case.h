// For tests of the kernels that are played on the CPU: one attention task over strided bf16 rows,
// and what the reference kernel makes of it.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "core/random.h"
#include "kernels/attention_kernel.h"

namespace longnet {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct KeyRows {
  int64_t rows = 0, first_token = 0, token_step = 1, stride = 0;  // stride 0: dense
};
struct TileCase {
  int64_t head_dim = 64;
  KeyRows q;
  std::vector<KeyRows> kv;
  bool causal = false;
  float amplitude = 1.0f;
};

// Storage of one run; the gaps between rows are NaN.
class TileStorage {
 public:
  TileStorage(const KeyRows& run, int64_t d, Tensor tensor, float amplitude)
      : stride_(run.stride > 0 ? run.stride : d), data_(size_t(stride_ * run.rows + 8), 0x7FFF) {
    std::vector<float> row(static_cast<size_t>(d));
    for (int64_t i = 0; i < run.rows; ++i) {
      generate_row({7, tensor, run.first_token + i * run.token_step, 0}, d, row.data());
      for (int64_t c = 0; c < d; ++c)
        first()[i * stride_ + c] = bf16_bits(row[size_t(c)] * amplitude);
    }
  }
  uint16_t* first() {  // 16-byte aligned
    return data_.data() + (16 - reinterpret_cast<uintptr_t>(data_.data()) % 16) % 16 / 2;
  }
  int64_t stride() const { return stride_; }

 private:
  int64_t stride_;
  std::vector<uint16_t> data_;
};

struct TileResult {
  std::vector<float> o, lse;
};

class TileTaskData {
 public:
  explicit TileTaskData(const TileCase& c)
      : case_(c), q_(c.q, c.head_dim, Tensor::kQuery, c.amplitude) {
    k_.reserve(c.kv.size());
    v_.reserve(c.kv.size());
    for (const KeyRows& run : c.kv) {
      k_.emplace_back(run, c.head_dim, Tensor::kKey, c.amplitude);
      v_.emplace_back(run, c.head_dim, Tensor::kValue, 1.0f);
      kv_.push_back({.k = k_.back().first(),
                     .v = v_.back().first(),
                     .row_stride = k_.back().stride(),
                     .rows = run.rows,
                     .first_token = run.first_token,
                     .token_step = run.token_step});
    }
  }
  // Rows of O lie d + 2 apart, LSEs 3 apart.
  AttendTask task(TileResult& into) {
    const int64_t d = case_.head_dim, rows = case_.q.rows;
    if (into.o.empty()) {
      into.o.assign(size_t(rows * (d + 2)), -77.0f);
      into.lse.assign(size_t(rows * 3), -77.0f);
    }
    return {.q = {.q = q_.first(),
                  .row_stride = q_.stride(),
                  .rows = rows,
                  .first_token = case_.q.first_token,
                  .token_step = case_.q.token_step},
            .kv = kv_,
            .out = {into.o.data(), into.lse.data(), d + 2, 3}};
  }
  AttendOptions options(float output_scale = 1.0f) const {
    return {.head_dim = case_.head_dim,
            .dtype = DType::kBFloat16,
            .causal = case_.causal,
            .output_scale = output_scale};
  }

 private:
  TileCase case_;
  TileStorage q_;
  std::vector<TileStorage> k_, v_;
  std::vector<KvRun> kv_;
};

// `result` holds the rows that `expected` does: within bf16's accuracy, gaps untouched.
inline void expect_same_rows(const TileResult& result, const TileResult& expected,
                             double lse_tolerance = 1e-5) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.o.size(); ++i) {
    difference += std::pow(double(result.o[i]) - double(expected.o[i]), 2);
    norm += std::pow(double(expected.o[i]), 2);
  }
  EXPECT_LE(std::sqrt(difference), 4e-3 * std::sqrt(norm));
  for (size_t i = 0; i < expected.lse.size(); ++i) {
    if (result.lse[i] == expected.lse[i]) continue;  // also -inf, and the gaps
    EXPECT_NEAR(result.lse[i], expected.lse[i],
                lse_tolerance * std::max(1.0f, std::abs(expected.lse[i])))
        << i;
  }
}

inline TileResult reference_result(TileTaskData& setup) {
  TileResult expected;
  const AttendTask wanted = setup.task(expected);
  make_kernel("reference")->attend({&wanted, 1}, setup.options(), 1, {});
  return expected;
}

// Cases that the loop of every kernel has to get right; `expect_like_reference(case)` runs one.
// Rows gathered from ranks, of a branch with w mod r != 0.
template <class Expect>
void expect_runs_of_unequal_length(Expect expect_like_reference, int64_t ranks, int64_t rows) {
  const KeyRows q{.rows = 200, .first_token = 3, .token_step = 6, .stride = 6 * 64};
  std::vector<KeyRows> kv;
  for (int64_t rank = 0, token = 3; rank < ranks; ++rank) {
    const int64_t some = rank == 4 ? 0 : rows + rank % 2;
    kv.push_back({.rows = some, .first_token = token, .token_step = 6});
    token += 6 * some;
  }
  for (const bool causal : {false, true})
    expect_like_reference(TileCase{.q = q, .kv = kv, .causal = causal});
}

template <class Expect>
void expect_causal_runs_in_any_order(Expect expect_like_reference) {
  const KeyRows q{.rows = 200, .first_token = 50, .token_step = 2};
  const KeyRows early{.rows = 70}, late{.rows = 300, .first_token = 150};
  const KeyRows never{.rows = 30, .first_token = 100000};
  for (const auto& kv : std::vector<std::vector<KeyRows>>{
           {late, early}, {early, late}, {never}, {never, early}, {early, late, never}})
    expect_like_reference(TileCase{.q = q, .kv = kv, .causal = true});
}

template <class Expect>
void expect_far_positions_and_huge_scores(Expect expect_like_reference) {
  const int64_t far = int64_t{1} << 39, step = int64_t{1} << 28;
  const KeyRows rows{.rows = 130, .first_token = far, .token_step = step};
  expect_like_reference(TileCase{.q = rows, .kv = {rows}, .causal = true});
  expect_like_reference(
      TileCase{.q = {.rows = 64}, .kv = {{.rows = 300}}, .causal = true, .amplitude = 300.0f});
}

// One run against two halves that are merged, the second inside the kernel:
// emulate(tasks, options, merge).
template <class Emulate>
void expect_merges_in_the_epilogue(Emulate emulate) {
  const KeyRows first{.rows = 100}, second{.rows = 190, .first_token = 100};
  const KeyRows q{.rows = 200, .first_token = 60};
  for (const bool causal : {false, true}) {
    TileTaskData whole({.q = q, .kv = {first, second}, .causal = causal});
    TileTaskData a({.q = q, .kv = {first}, .causal = causal});
    TileTaskData b({.q = q, .kv = {second}, .causal = causal});
    TileTaskData nothing({.q = q, .kv = {}, .causal = causal});
    const TileResult expected = reference_result(whole);
    TileResult result;
    for (auto* half : {&nothing, &a, &nothing, &b}) {
      const bool merge = !result.o.empty();
      const AttendTask task = half->task(result);
      emulate(std::span<const AttendTask>(&task, 1), half->options(), merge);
    }
    expect_same_rows(result, expected, 2e-5);
  }
}

}  // namespace longnet
