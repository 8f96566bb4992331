// The implementation of attend_case.h is in a *_test.cpp: it belongs to the test program only.
#include "kernels/testing/attend_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

#include "core/check.h"
#include "core/random.h"

namespace longnet {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kGuarded = 12345.0f;
constexpr int64_t kOffset = 3;  // rows start at an odd multiple of the element
constexpr int64_t kOutGap = 5, kLseStride = 3;

struct GuardedOutput {
  int64_t rows, head_dim, o_stride;
  std::vector<float> o, lse;

  GuardedOutput(int64_t r, int64_t d)
      : rows(r),
        head_dim(d),
        o_stride(d + kOutGap),
        o(size_t((r + 2) * o_stride), kGuarded),
        lse(size_t((r + 2) * kLseStride), kGuarded) {}

  PartialRun run() {
    return {.o = o.data() + o_stride + 1,
            .lse = lse.data() + kLseStride,
            .o_stride = o_stride,
            .lse_stride = kLseStride};
  }
  // Takes the rows out and expects guard values in what remains.
  AttendResult take() {
    AttendResult result;
    const PartialRun at = run();
    for (int64_t i = 0; i < rows; ++i) {
      float* row = at.o + i * o_stride;
      result.o.insert(result.o.end(), row, row + head_dim);
      std::fill(row, row + head_dim, kGuarded);
      result.lse.push_back(at.lse[i * kLseStride]);
      at.lse[i * kLseStride] = kGuarded;
    }
    EXPECT_TRUE(std::all_of(o.begin(), o.end(), [](float x) { return x == kGuarded; }));
    EXPECT_TRUE(std::all_of(lse.begin(), lse.end(), [](float x) { return x == kGuarded; }));
    return result;
  }
};

}  // namespace

std::string to_string(const AttendSpec& spec) {
  std::string text =
      concat("d=", spec.head_dim, " ", to_string(spec.dtype), " causal=", spec.causal, " q={",
             spec.q.rows, " from ", spec.q.first_token, " by ", spec.q.token_step, "} kv=");
  for (size_t i = 0; i < std::min<size_t>(spec.kv.size(), 8); ++i) {
    const RunSpec& run = spec.kv[i];
    text += concat("{", run.rows, " from ", run.first_token, " by ", run.token_step, "}");
  }
  return text;
}

AttendCase::AttendCase(const AttendSpec& spec) : spec_(spec) {
  q_ = make_rows(spec.q, 1, spec.q.amplitude);
  uint64_t seed = 1;
  for (const RunSpec& run : spec.kv) {
    k_.push_back(make_rows(run, ++seed, run.amplitude));
    v_.push_back(make_rows(run, ++seed, 1.0f));
    kv_.push_back({.k = k_.back().first,
                   .v = v_.back().first,
                   .row_stride = spec.head_dim + run.gap,
                   .rows = run.rows,
                   .first_token = run.first_token,
                   .token_step = run.token_step});
  }
}

AttendCase::Rows AttendCase::make_rows(const RunSpec& run, uint64_t seed, float amplitude) const {
  const int64_t d = spec_.head_dim, stride = d + run.gap;
  Rows rows;
  rows.fp32.assign(size_t(kOffset + run.rows * stride), kNan);
  for (int64_t i = 0; i < run.rows; ++i) {
    float* row = rows.fp32.data() + kOffset + i * stride;
    generate_row({.seed = seed, .tensor = Tensor::kKey, .token = i, .head = 0}, d, row);
    for (int64_t c = 0; c < d; ++c) row[c] *= amplitude;
  }
  rows.first = rows.fp32.data() + kOffset;
  if (spec_.dtype == DType::kBFloat16) {
    for (const float x : rows.fp32) rows.bf16.push_back(std::isnan(x) ? 0x7FC0 : bf16_bits(x));
    rows.fp32.clear();
    rows.first = rows.bf16.data() + kOffset;
  }
  return rows;
}

AttendOptions AttendCase::options() const {
  return {.head_dim = spec_.head_dim,
          .dtype = spec_.dtype,
          .causal = spec_.causal,
          .output_scale = spec_.output_scale,
          .progress_hook = spec_.progress_hook};
}

AttendResult AttendCase::run(const AttentionKernel& kernel) const {
  return run_all({this, 1}, kernel, 1).front();
}

std::vector<AttendResult> AttendCase::run_all(std::span<const AttendCase> cases,
                                              const AttentionKernel& kernel, int threads) {
  std::vector<GuardedOutput> outputs;
  std::vector<AttendGrid> grids;
  for (const AttendCase& c : cases) outputs.emplace_back(c.spec_.q.rows, c.spec_.head_dim);
  for (size_t i = 0; i < cases.size(); ++i) {
    const AttendSpec& spec = cases[i].spec_;
    grids.push_back({.task = {.q = {.q = cases[i].q_.first,
                                    .row_stride = spec.head_dim + spec.q.gap,
                                    .rows = spec.q.rows,
                                    .first_token = spec.q.first_token,
                                    .token_step = spec.q.token_step},
                              .kv = cases[i].kv_,
                              .out = outputs[i].run()}});
  }
  const AttendOptions options = cases.front().options();
  const PoisonedWorkspace workspace(kernel.workspace_bytes(options, threads));
  kernel.attend(grids, options, threads, workspace.bytes());
  std::vector<AttendResult> results;
  for (GuardedOutput& output : outputs) results.push_back(output.take());
  return results;
}

double relative_error(const AttendResult& a, const AttendResult& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.o.size(); ++i) {
    difference += (double(a.o[i]) - b.o[i]) * (double(a.o[i]) - b.o[i]);
    norm += double(b.o[i]) * b.o[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

double lse_error(const AttendResult& a, const AttendResult& b) {
  double worst = 0;
  for (size_t i = 0; i < b.lse.size(); ++i) {
    if (a.lse[i] == b.lse[i]) continue;  // also -inf == -inf
    const double error = std::fabs(double(a.lse[i]) - b.lse[i]);
    worst = std::max(worst, std::isnan(error) ? double(INFINITY) : error);
  }
  return worst;
}

}  // namespace longnet
