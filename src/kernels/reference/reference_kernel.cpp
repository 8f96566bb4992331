#include <cmath>
#include <functional>
#include <limits>

#include "core/random.h"
#include "kernels/attention_kernel.h"
#include "kernels/reference/row_oracle.h"

namespace longnet {
namespace {

// Row `row` of a run of either storage dtype, as floats (bf16 to fp32 is exact).
std::vector<float> load_row(const void* base, int64_t stride, int64_t row,
                            const AttendOptions& options) {
  std::vector<float> x(size_t(options.head_dim));
  for (int64_t c = 0; c < options.head_dim; ++c) {
    const int64_t at = row * stride + c;
    x[size_t(c)] = options.dtype == DType::kFloat32
                       ? static_cast<const float*>(base)[at]
                       : bf16_value(static_cast<const uint16_t*>(base)[at]);
  }
  return x;
}

void attend_row(const AttendTask& task, int64_t i, const AttendOptions& options) {
  const int64_t token = task.q.first_token + i * task.q.token_step;
  RowOracle oracle(load_row(task.q.q, task.q.row_stride, i, options));
  for (const KvRun run : task.kv) {
    for (int64_t j = 0; j < run.rows; ++j) {
      if (options.causal && run.first_token + j * run.token_step > token) continue;
      oracle.add_key(load_row(run.k, run.row_stride, j, options).data(),
                     load_row(run.v, run.row_stride, j, options).data());
    }
  }
  const RowOracle::Row row = oracle.finish();
  for (int64_t c = 0; c < options.head_dim; ++c) {
    task.out.o[i * task.out.o_stride + c] = float(row.o[size_t(c)] * options.output_scale);
  }
  task.out.lse[i * task.out.lse_stride] = float(row.lse);
}

void merge_row(const MergeTask& task, int64_t i, MergeRule rule, int64_t head_dim) {
  const double from = task.from.lse[i * task.from.lse_stride];
  float& into = task.into.lse[i * task.into.lse_stride];
  const double max = std::max(from, double(into));
  if (max == -std::numeric_limits<double>::infinity()) return;  // neither saw a key
  const double lse = max + std::log(std::exp(from - max) + std::exp(into - max));
  const bool sum = rule == MergeRule::kSum;
  const double from_weight = sum ? 1.0 : std::exp(from - lse);
  const double into_weight = sum ? 1.0 : std::exp(into - lse);
  const float* from_o = task.from.o + i * task.from.o_stride;
  float* into_o = task.into.o + i * task.into.o_stride;
  for (int64_t c = 0; c < head_dim; ++c) {
    into_o[c] = float(into_weight * into_o[c] + from_weight * from_o[c]);
  }
  into = float(lse);
}

class ReferenceKernel final : public AttentionKernel {
 public:
  std::string_view name() const override { return "reference"; }

  std::string why_unsupported(const AttendOptions& options) const override {
    return options.head_dim >= 1 ? "" : "head_dim must be at least 1";
  }

  int64_t workspace_bytes(const AttendOptions&, int) const override { return 0; }

  void attend(std::span<const AttendGrid> grids, const AttendOptions& options, int,
              std::span<std::byte>) const override {
    for (const AttendGrid& grid : grids)
      for (int64_t t = 0; t < grid.size(); ++t)
        for (int64_t i = 0; i < grid.task.q.rows; ++i) attend_row(grid.at(t), i, options);
  }

  void merge(std::span<const MergeTask> tasks, MergeRule rule, const AttendOptions& options,
             int) const override {
    for (const MergeTask& task : tasks) {
      for (int64_t i = 0; i < task.rows; ++i) merge_row(task, i, rule, options.head_dim);
    }
  }

  void pack(std::span<const PackTask> tasks, Conversion conversion, const AttendOptions& options,
            int) const override {
    const int64_t d = options.head_dim;
    if (options.dtype == DType::kFloat32) return convert<float, float>(tasks, d, std::identity{});
    switch (conversion) {
      case Conversion::kNone:
        return convert<uint16_t, uint16_t>(tasks, d, std::identity{});
      case Conversion::kRound:
        return convert<float, uint16_t>(tasks, d, bf16_bits);
      case Conversion::kWiden:
        return convert<uint16_t, float>(tasks, d, bf16_value);
    }
  }

 private:
  template <class From, class Into, class Fn>
  static void convert(std::span<const PackTask> tasks, int64_t head_dim, Fn fn) {
    for (const PackTask& task : tasks)
      for (int64_t i = 0; i < task.rows; ++i)
        for (int64_t c = 0; c < head_dim; ++c)
          static_cast<Into*>(task.into)[i * task.into_stride + c] =
              fn(static_cast<const From*>(task.from)[i * task.from_stride + c]);
  }
};

}  // namespace

std::unique_ptr<AttentionKernel> make_reference_kernel() {
  return std::make_unique<ReferenceKernel>();
}

}  // namespace longnet
