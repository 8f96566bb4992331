// Kernels of one device on rows that are already there: attend, merge, add, pack, fill.
//
// The kernels use rows, strides and positions, and nothing of branches, ranks or schedules. A
// dilated segment of head j is a QueryRun and a KvRun with row_stride = dilation_rate * num_heads *
// head_dim: no copy. Rows that were gathered from several ranks are several KvRuns of one task.
//
// Partial results follow FlashAttention-2 (Dao, 2023): O is normalised, LSE = ln sum exp(score),
// both fp32; a row that sees no key has O = 0 and LSE = -inf, the identity of merge.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/problem.h"
#include "kernels/attend_grid.h"

namespace longnet {

// into = merge(into, from), row by row; the rows may not overlap.
struct MergeTask {
  PartialRun from, into;
  int64_t rows = 0;
};

// The statistics of rows for their backward pass: L, the LSE of the forward pass, and right behind
// it delta = dO . O, the sum over a row.
struct DeltaTask {
  PartialRun out;                  // O and LSE
  const void* grad_out = nullptr;  // dO
  float* statistics = nullptr;
  int64_t grad_out_stride = 0, statistics_stride = 2, rows = 0;  // elements, floats
};

// Copies rows of head_dim elements from a strided place to another, or adds them to those there.
struct PackTask {
  const void* from = nullptr;
  void* into = nullptr;
  int64_t from_stride = 0, into_stride = 0, rows = 0;  // strides in elements of each side
};

// Adds rows of fp32 to others, and then those that lie `piece_stride` elements further on, and so
// on: `pieces` in all.
struct SumTask : PackTask {
  int64_t pieces = 1, piece_stride = 0;
};
// kNone: both sides have the storage dtype. kRound, kWiden: rows of O in fp32 become the storage
// dtype (to nearest, ties to even), or the other way.
enum class Conversion { kNone, kRound, kWiden };

// kLse: one softmax over both key sets. kSum: O adds up, LSE as in kLse.
enum class MergeRule { kLse, kSum };

struct AttendOptions {
  int64_t head_dim = 64;
  DType dtype = DType::kFloat32;
  bool causal = false;
  // O, and in a backward pass dO, is multiplied by it (a mixture by mean: 1 / branches).
  float output_scale = 1.0f;
  // Called about every millisecond by the thread that called attend().
  const std::function<void()>* progress_hook = nullptr;
  DType output_dtype = DType::kFloat32;  // bf16: kernels of a GPU alone, see DeviceAttendOptions
};

// Scores are multiplied by 1 / sqrt(head_dim) before the softmax.
class AttentionKernel {
 public:
  virtual ~AttentionKernel() = default;
  virtual std::string_view name() const = 0;
  // Empty when the kernel supports these options, else the reason.
  std::string why_unsupported(const AttendOptions& options) const {
    if (options.output_dtype == DType::kFloat32) return why_kernel_unsupported(options);
    return concat("the kernel ", name(), " stores O in fp32, not ", to_string(options.output_dtype),
                  ": model.output_dtype is for GPUs");
  }
  // Bytes of scratch memory that attend() needs, for any tasks, on `threads` threads; 64-byte
  // aligned.
  virtual int64_t workspace_bytes(const AttendOptions& options, int threads) const = 0;
  // Runs all tasks of all grids on `threads` threads. Allocates nothing. Tasks are independent of
  // each other. The result of a task does not depend on `threads` nor on the other tasks.
  virtual void attend(std::span<const AttendGrid> grids, const AttendOptions& options, int threads,
                      std::span<std::byte> workspace) const = 0;
  // The backward pass of all tasks of all grids, with P = exp(q . k / sqrt(d) - L) for each pair:
  //   dV += P dO      dS = P (dO . V - delta)      dQ += dS K / sqrt(d)      dK += dS Q / sqrt(d)
  // With L and delta of the merged rows it is one branch's part of the exact gradient of a mixture
  // by LSE; with those of the branch itself, of a mixture by sum or mean; with the merged L and the
  // branch's delta, of one by LSE with detached weights. L = -inf counts as +inf.
  // The result does not depend on `threads`. Allocates nothing.
  virtual void attend_backward(std::span<const BackwardGrid> grids, const AttendOptions& options,
                               int threads, std::span<std::byte> workspace) const = 0;
  // Enough for attend() too: all mixtures but the exact one by LSE attend once more.
  virtual int64_t backward_workspace_bytes(const AttendOptions& options, int threads) const = 0;
  // Whether P = exp(S - L), and dS of a backward pass, are rounded to 16 bits before products.
  virtual bool rounds_probabilities(DType) const { return false; }
  int64_t workspace_bytes(const AttendOptions& options, int threads, Pass pass) const {
    return std::max(has_forward(pass) ? workspace_bytes(options, threads) : 0,
                    has_backward(pass) ? backward_workspace_bytes(options, threads) : 0);
  }
  virtual void delta(std::span<const DeltaTask> tasks, const AttendOptions& options,
                     int threads) const = 0;
  virtual void merge(std::span<const MergeTask> tasks, MergeRule rule, const AttendOptions& options,
                     int threads) const = 0;
  // Sums of gradients.
  virtual void add(std::span<const SumTask> tasks, const AttendOptions& options,
                   int threads) const = 0;
  virtual void pack(std::span<const PackTask> tasks, Conversion conversion,
                    const AttendOptions& options, int threads) const = 0;
  virtual void fill(std::span<const std::span<float>> ranges, float value, int threads) const = 0;

 protected:
  // Why this kernel refuses the head_dim, or the machine, with O in fp32; empty when it does not.
  virtual std::string why_kernel_unsupported(const AttendOptions& options) const = 0;
};

// Empty for a multiple of 8 from 8 to `most`, else why a kernel refuses this head_dim.
inline std::string why_head_dim_unsupported(int64_t head_dim, int64_t most) {
  if (head_dim >= 8 && head_dim <= most && head_dim % 8 == 0) return "";
  return concat("head_dim must be a multiple of 8 from 8 to ", most, ", is ", head_dim);
}

// reference/row_oracle.h for each query row: simple enough to be obviously right. Slow; allocates.
std::unique_ptr<AttentionKernel> make_reference_kernel();
// Exact, tiled, fp32 arithmetic over fp32 or bf16 storage (see cpu/attend_simd.h).
std::unique_ptr<AttentionKernel> make_cpu_kernel();
// The cpu kernel with attention by AMX tiles. fp32 inputs keep the errors of fp32 arithmetic (see
// cpu/attend_amx_simd.h).
std::unique_ptr<AttentionKernel> make_amx_kernel();

struct KernelInfo {
  std::string_view name, about;  // one line for `lnbench list`
  std::unique_ptr<AttentionKernel> (*make)();
};
std::span<const KernelInfo> kernels();
// Throws UsageError naming the known kernels when `name` is not one of them.
std::unique_ptr<AttentionKernel> make_kernel(std::string_view name);

}  // namespace longnet
