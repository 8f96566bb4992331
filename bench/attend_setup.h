// Attention tasks of a kernel of the host for benchmarks: the shape, and tensors and tasks of it.
#pragma once
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/random.h"
#include "core/tagged_memory.h"
#include "kernels/attention_kernel.h"

namespace longnet {

struct AttendPoint {
  DType dtype = DType::kFloat32;
  int64_t head_dim = 64, rows = 2048, stride = 1;
  bool causal = false;
  std::string target = {};  // empty: the best
  int64_t segments = 1;     // tasks of `rows` rows each
  int threads = 1;
  bool backward = false;
  std::string kernel = "cpu";
};

// Q, K, V and O of `segments` equal tasks, each with its own rows, and for the backward pass dO,
// dQ, dK and dV.
class AttendSetup {
 public:
  explicit AttendSetup(const AttendPoint& p)
      : kernel_(make_kernel(p.kernel)),
        options_{.head_dim = p.head_dim, .dtype = p.dtype, .causal = p.causal},
        threads_(p.threads),
        workspace_(ledger_, kWorkspaceTag,
                   std::max(kernel_->workspace_bytes(options_, p.threads),
                            kernel_->backward_workspace_bytes(options_, p.threads))) {
    const int64_t total = p.segments * p.rows, row_stride = p.stride * p.head_dim;
    fill(p, Tensor::kQuery, total, q_);
    fill(p, Tensor::kKey, 2 * total, kv_);                          // K, then V
    const int64_t o_stride = p.backward ? row_stride : p.head_dim;  // dQ lies as Q
    o_ = zeros(total * o_stride);
    lse_ = zeros(total);
    runs_.resize(size_t(p.segments));
    const auto at = [&](const TaggedBuffer& x, int64_t row) {
      return x.data() + row * row_stride * dtype_bytes(p.dtype);
    };
    for (int64_t s = 0; s < p.segments; ++s) {
      const int64_t row = s * p.rows;
      runs_[size_t(s)] = {
          .k = at(kv_, row), .v = at(kv_, total + row), .row_stride = row_stride, .rows = p.rows};
      tasks_.push_back({{.q = {.q = at(q_, row), .row_stride = row_stride, .rows = p.rows},
                         .kv = {&runs_[size_t(s)], 1},
                         .out = {.o = floats(o_) + row * o_stride,
                                 .lse = floats(lse_) + row,
                                 .o_stride = o_stride,
                                 .lse_stride = 1}}});
    }
    if (p.backward) add_backward(p);
  }

  void run() {
    if (backward_.empty()) {
      kernel_->attend(tasks_, options_, threads_, workspace_.bytes());
    } else {
      kernel_->attend_backward(backward_, options_, threads_, workspace_.bytes());
    }
    benchmark::DoNotOptimize(o_.data());
    benchmark::ClobberMemory();
  }

 private:
  // Memory as executors have it: in huge pages where it is large.
  TaggedBuffer zeros(int64_t count) {
    TaggedBuffer buffer(ledger_, "tensor", count * int64_t(sizeof(float)));
    std::fill_n(floats(buffer), count, 0.0f);
    return buffer;
  }
  static float* floats(const TaggedBuffer& buffer) {
    return reinterpret_cast<float*>(buffer.data());
  }

  void fill(const AttendPoint& p, Tensor tensor, int64_t rows, TaggedBuffer& into) {
    into = zeros(rows * p.stride * p.head_dim * dtype_bytes(p.dtype) / int64_t(sizeof(float)));
    for (int64_t i = 0; i < rows; ++i) {
      const RowKey key{.seed = 1, .tensor = tensor, .token = i, .head = 0};
      const int64_t at = i * p.stride * p.head_dim;
      if (p.dtype == DType::kFloat32) {
        generate_row(key, p.head_dim, floats(into) + at);
      } else {
        generate_row(key, p.head_dim, reinterpret_cast<uint16_t*>(into.data()) + at);
      }
    }
  }

  void add_backward(const AttendPoint& p) {
    run();  // O and L
    fill(p, Tensor::kValue, p.segments * p.rows, grad_out_);
    const int64_t total = p.segments * p.rows;
    statistics_ = zeros(2 * total);
    const DeltaTask delta{.out = tasks_[0].task.out,
                          .grad_out = grad_out_.data(),
                          .statistics = floats(statistics_),
                          .grad_out_stride = p.stride * p.head_dim,
                          .rows = total};
    kernel_->delta({&delta, 1}, options_, threads_);
    grad_kv_ = zeros(2 * total * p.stride * p.head_dim);
    for (const AttendGrid& forward : tasks_) {
      BackwardGrid& grid = backward_.emplace_back();
      const auto& task = forward.task;
      grid.attend = forward;
      grid.attend.task.out = {};
      grid.grad_q = task.out.o;
      grid.statistics = floats(statistics_) + 2 * (task.out.lse - floats(lse_));
      grid.grad_out = grad_out_.data() + bytes_between(q_.data(), task.q.q);
      grid.keys = kv_.data();
      grid.grad_keys = floats(grad_kv_);
    }
  }

  std::unique_ptr<AttentionKernel> kernel_;
  AttendOptions options_;
  int threads_;
  MemoryLedger ledger_;
  TaggedBuffer workspace_;
  TaggedBuffer q_, kv_, o_, lse_, grad_out_, statistics_, grad_kv_;  // o_: O, then dQ
  std::vector<KvRun> runs_;
  std::vector<AttendGrid> tasks_;
  std::vector<BackwardGrid> backward_;
};

}  // namespace longnet
