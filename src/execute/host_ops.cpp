#include "execute/host_ops.h"

#include <algorithm>
#include <limits>

#include "core/check.h"

namespace longnet {

void require_supported(const AttentionKernel& kernel, const BoundProgram& bound) {
  const std::string refusal = kernel.why_unsupported(bound.options());
  check(refusal.empty(), "kernel ", kernel.name(), ": ", refusal);
}

void execute_rows(const AttentionKernel& kernel, const BoundProgram& bound, size_t op) {
  const BoundOp& b = bound.op(op);
  const AttendOptions& options = bound.options();
  const int threads = bound.threads();
  AttendOptions floats = options;
  floats.dtype = DType::kFloat32;
  kernel.pack(b.packs, options, threads);
  kernel.pack(b.float_packs, floats, threads);
  kernel.round(b.rounds, options, threads);
  kernel.widen(b.widens, options, threads);
  for (const LseCopy& c : b.lse_copies)
    for (int64_t i = 0; i < c.rows; ++i) c.into[i * c.into_stride] = c.from[i * c.from_stride];
  kernel.merge(b.merges, bound.merge_rule(), options, threads);
  for (auto values : b.zeros) std::fill(values.begin(), values.end(), 0.0f);
  for (auto values : b.absent)
    std::fill(values.begin(), values.end(), -std::numeric_limits<float>::infinity());
}

void execute_attends(const AttentionKernel& kernel, const BoundProgram& bound, size_t op,
                     std::span<std::byte> workspace, const std::function<void()>* progress_hook) {
  AttendOptions options = bound.options();
  options.progress_hook = progress_hook;
  if (!bound.op(op).attends.empty())
    kernel.attend(bound.op(op).attends, options, bound.threads(), workspace);
}

}  // namespace longnet
