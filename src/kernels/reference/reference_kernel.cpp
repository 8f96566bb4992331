// The `reference` kernel: attention by the definition, row by row in double. Other kernels are
// tested against it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

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

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

void add_scaled(std::vector<double>& sum, double factor, const std::vector<float>& x) {
  for (size_t c = 0; c < sum.size(); ++c) sum[c] += factor * x[c];
}

void add_row(const std::vector<double>& sum, float* into) {
  for (size_t c = 0; c < sum.size(); ++c) into[c] = float(into[c] + sum[c]);
}

void attend_backward(const BackwardTask& task, const AttendOptions& options) {
  const double scale = 1 / std::sqrt(double(options.head_dim));
  const std::vector<double> zeros(size_t(options.head_dim), 0.0);
  std::vector<std::vector<float>> q, grad_out;
  for (int64_t i = 0; i < task.q.rows; ++i) {
    q.push_back(load_row(task.q.q, task.q.row_stride, i, options));
    grad_out.push_back(load_row(task.grad_out, task.q.row_stride, i, options));
  }
  std::vector<std::vector<double>> grad_q(q.size(), zeros);
  for (const KvRun run : task.kv)
    for (int64_t j = 0; j < run.rows; ++j) {
      const auto k = load_row(run.k, run.row_stride, j, options),
                 v = load_row(run.v, run.row_stride, j, options);
      std::vector<double> grad_k = zeros, grad_v = zeros;
      for (size_t i = 0; i < q.size(); ++i) {
        const float* const statistics = task.statistics + int64_t(i) * task.statistics_stride;
        const int64_t token = task.q.first_token + int64_t(i) * task.q.token_step;
        const bool hidden = options.causal && run.first_token + j * run.token_step > token;
        if (hidden || statistics[0] == -std::numeric_limits<float>::infinity()) continue;
        const double p = std::exp(dot(q[i], k) * scale - statistics[0]);
        const double ds = p * (options.output_scale * dot(grad_out[i], v) - statistics[1]);
        add_scaled(grad_v, p * options.output_scale, grad_out[i]);
        add_scaled(grad_k, ds * scale, q[i]);
        add_scaled(grad_q[i], ds * scale, k);
      }
      const int64_t bytes = dtype_bytes(options.dtype);
      add_row(grad_k, task.gradient_of(run.k, bytes) + j * run.row_stride);
      add_row(grad_v, task.gradient_of(run.v, bytes) + j * run.row_stride);
    }
  for (size_t i = 0; i < q.size(); ++i)
    add_row(grad_q[i], task.grad_q + int64_t(i) * task.q.row_stride);
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

  int64_t workspace_bytes(const AttendOptions&, int) const override { return 0; }

  void attend(std::span<const AttendGrid> grids, const AttendOptions& options, int,
              std::span<std::byte>) const override {
    for (const AttendGrid& grid : grids)
      for (int64_t t = 0; t < grid.size(); ++t)
        for (int64_t i = 0; i < grid.task.q.rows; ++i) attend_row(grid.at(t), i, options);
  }

  int64_t backward_workspace_bytes(const AttendOptions&, int) const override { return 0; }

  void attend_backward(std::span<const BackwardGrid> grids, const AttendOptions& options, int,
                       std::span<std::byte>) const override {
    for (const BackwardGrid& grid : grids)
      for (int64_t t = 0; t < grid.size(); ++t)
        longnet::attend_backward(grid.at(t, dtype_bytes(options.dtype)), options);
  }

  void delta(std::span<const DeltaTask> tasks, const AttendOptions& options, int) const override {
    for (const DeltaTask& task : tasks)
      for (int64_t i = 0; i < task.rows; ++i) {
        const auto grad_out = load_row(task.grad_out, task.grad_out_stride, i, options);
        float* const statistics = task.statistics + i * task.statistics_stride;
        statistics[0] = task.out.lse[i * task.out.lse_stride];
        statistics[1] = float(std::inner_product(grad_out.begin(), grad_out.end(),
                                                 task.out.o + i * task.out.o_stride, 0.0));
      }
  }

  void merge(std::span<const MergeTask> tasks, MergeRule rule, const AttendOptions& options,
             int) const override {
    for (const MergeTask& task : tasks) {
      for (int64_t i = 0; i < task.rows; ++i) merge_row(task, i, rule, options.head_dim);
    }
  }

  void add(std::span<const SumTask> tasks, const AttendOptions& options, int) const override {
    for (const SumTask& sum : tasks)
      for (int64_t piece = 0; piece < sum.pieces; ++piece) {
        PackTask task = sum;
        task.from = static_cast<const float*>(sum.from) + piece * sum.piece_stride;
        for_each<float, float>({&task, 1}, options.head_dim,
                               [](float from, float& into) { into += from; });
      }
  }

  void pack(std::span<const PackTask> tasks, Conversion conversion, const AttendOptions& options,
            int) const override {
    const int64_t d = options.head_dim;
    const auto copy = [](auto from, auto& into) { into = from; };
    if (options.dtype == DType::kFloat32) return for_each<float, float>(tasks, d, copy);
    switch (conversion) {
      case Conversion::kNone:
        return for_each<uint16_t, uint16_t>(tasks, d, copy);
      case Conversion::kRound:
        return for_each<float, uint16_t>(tasks, d, [](float x, auto& y) { y = bf16_bits(x); });
      case Conversion::kWiden:
        return for_each<uint16_t, float>(tasks, d, [](auto x, float& y) { y = bf16_value(x); });
    }
  }

  void fill(std::span<const std::span<float>> ranges, float value, int) const override {
    for (const std::span<float> range : ranges) std::ranges::fill(range, value);
  }

 private:
  std::string why_kernel_unsupported(const AttendOptions& options) const override {
    return options.head_dim >= 1 ? "" : "head_dim must be at least 1";
  }
  // fn(element of `from`, element of `into`)
  template <class From, class Into, class Fn>
  static void for_each(std::span<const PackTask> tasks, int64_t head_dim, Fn fn) {
    for (const PackTask& task : tasks)
      for (int64_t i = 0; i < task.rows; ++i)
        for (int64_t c = 0; c < head_dim; ++c)
          fn(static_cast<const From*>(task.from)[i * task.from_stride + c],
             static_cast<Into*>(task.into)[i * task.into_stride + c]);
  }
};

}  // namespace

std::unique_ptr<AttentionKernel> make_reference_kernel() {
  return std::make_unique<ReferenceKernel>();
}

}  // namespace longnet
