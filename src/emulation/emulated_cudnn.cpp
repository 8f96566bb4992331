// cuDNN's part of the `cudnn` kernel on the emulated device: a plan attends a strided view by the
// CPU's kernel. Rows that see no key are NaN with an LSE of -inf, for the library promises
// nothing.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "core/check.h"
#include "core/memory_tags.h"
#include "core/random.h"
#include "emulation/emulated_device.h"
#include "kernels/cuda/cudnn_graph.h"

namespace longnet {

namespace {

void attend_view(const SdpaShape& s, const SdpaPointers& p) {
  const AttendOptions options{
      .head_dim = s.head_dim, .dtype = DType::kBFloat16, .causal = s.mask != ViewMask::kNone};
  std::vector<float> o(size_t(s.rows * s.head_dim));
  for (int64_t i = 0; i < s.outer * s.inner; ++i) {
    const auto first = [&](const std::array<int64_t, 3>& strides) {
      return i / s.inner * strides[0] + i % s.inner * strides[1];
    };
    const auto at = [&](const void* base, const std::array<int64_t, 3>& strides) {
      return static_cast<const uint16_t*>(base) + first(strides);
    };
    const KvRun run{.k = at(p.k, s.k),
                    .v = at(p.v, s.k),
                    .row_stride = s.k[2],
                    .rows = s.keys,
                    .first_token = s.mask == ViewMask::kBeforeOwn ? 1 : 0};
    float* const lse = p.lse + first(s.lse);
    attend_on_cpu({.q = {.q = at(p.q, s.q), .row_stride = s.q[2], .rows = s.rows},
                   .kv = {&run, 1},
                   .out = {o.data(), lse, s.head_dim, s.lse[2]}},
                  options);
    for (int64_t row = 0; row < s.rows; ++row)
      for (int64_t c = 0; c < s.head_dim; ++c)
        static_cast<uint16_t*>(p.o)[first(s.o) + row * s.o[2] + c] =
            bf16_bits(std::isinf(lse[row * s.lse[2]]) ? std::numeric_limits<float>::quiet_NaN()
                                                      : o[size_t(row * s.head_dim + c)]);
  }
}

// As the library's graph computes it: delta of O and dO; a row whose LSE is -inf makes NaN.
void attend_view_backward(const SdpaShape& s, const SdpaPointers& p) {
  const AttendOptions options{
      .head_dim = s.head_dim, .dtype = DType::kBFloat16, .causal = s.mask != ViewMask::kNone};
  const auto kernel = make_kernel("cpu");
  MemoryLedger ledger;
  const TaggedBuffer workspace(ledger, kWorkspaceTag, kernel->backward_workspace_bytes(options, 1));
  const auto rows = size_t(s.rows), keys = size_t(s.keys), d = size_t(s.head_dim);
  for (int64_t i = 0; i < s.outer * s.inner; ++i) {
    const auto at = [&](const void* base, const std::array<int64_t, 3>& strides) {
      return static_cast<const uint16_t*>(base) + i / s.inner * strides[0] +
             i % s.inner * strides[1];
    };
    // K's rows, then V's, behind each other: their gradients lie as they do.
    std::vector<uint16_t> kv(2 * keys * d);
    std::vector<float> grad_q(size_t(s.q[2]) * rows), grad_kv(kv.size()), statistics(2 * rows);
    for (size_t row = 0; row < keys; ++row) {
      std::copy_n(at(p.k, s.k) + int64_t(row) * s.k[2], d, &kv[row * d]);
      std::copy_n(at(p.v, s.k) + int64_t(row) * s.k[2], d, &kv[(keys + row) * d]);
    }
    // dO lies as Q does in the kernel.
    std::vector<uint16_t> grad_out(grad_q.size());
    bool blind = false;
    for (size_t row = 0; row < rows; ++row) {
      const uint16_t *const g = at(p.grad_out, s.o) + int64_t(row) * s.o[2], *const o =
                                                                                 at(p.o, s.o) +
                                                                                 int64_t(row) *
                                                                                     s.o[2];
      statistics[2 * row] =
          p.lse[i / s.inner * s.lse[0] + i % s.inner * s.lse[1] + int64_t(row) * s.lse[2]];
      blind = blind || statistics[2 * row] == -std::numeric_limits<float>::infinity();
      for (size_t c = 0; c < d; ++c) statistics[2 * row + 1] += bf16_value(g[c]) * bf16_value(o[c]);
      std::copy_n(g, d, &grad_out[row * size_t(s.q[2])]);
    }
    const KvRun run{.k = kv.data(),
                    .v = kv.data() + keys * d,
                    .row_stride = s.head_dim,
                    .rows = s.keys,
                    .first_token = s.mask == ViewMask::kBeforeOwn ? 1 : 0};
    const BackwardGrid grid{
        .attend = {.task = {.q = {.q = at(p.q, s.q), .row_stride = s.q[2], .rows = s.rows},
                            .kv = {&run, 1},
                            .out = {}}},
        .grad_out = grad_out.data(),
        .grad_q = grad_q.data(),
        .statistics = statistics.data(),
        .keys = kv.data(),
        .grad_keys = grad_kv.data()};
    kernel->attend_backward({&grid, 1}, options, 1, workspace.bytes());
    const auto write = [&](void* into, const float* from, int64_t count, int64_t stride) {
      auto* const out = static_cast<uint16_t*>(into) + i * count * s.head_dim;
      for (int64_t row = 0; row < count; ++row)
        for (int64_t c = 0; c < s.head_dim; ++c)
          out[row * s.head_dim + c] =
              bf16_bits(blind ? std::numeric_limits<float>::quiet_NaN() : from[row * stride + c]);
    };
    write(p.grad_q, grad_q.data(), s.rows, s.q[2]);
    write(p.grad_k, grad_kv.data(), s.keys, s.head_dim);
    write(p.grad_v, grad_kv.data() + keys * d, s.keys, s.head_dim);
  }
}

class EmulatedPlan final : public SdpaPlan {
 public:
  explicit EmulatedPlan(const SdpaShape& shape) : shape_(shape) {}
  int64_t workspace_bytes() const override { return 64; }
  void launch(const SdpaPointers& pointers, void* workspace, const Stream& stream) const override {
    check(workspace != nullptr, "cuDNN: no workspace");
    emulate_launch(stream, [shape = shape_, pointers] {
      if (shape.backward)
        attend_view_backward(shape, pointers);
      else
        attend_view(shape, pointers);
    });
  }

 private:
  SdpaShape shape_;
};

}  // namespace

const SdpaPlan& sdpa_plan(const SdpaShape& shape) {
  const std::string misaligned = why_misaligned(shape);
  check(misaligned.empty(), "cuDNN: ", misaligned);
  check(shape.element == DeviceElement::kBFloat16, "cuDNN is emulated for bf16");
  using Plans = std::map<SdpaShape, EmulatedPlan>;
  static thread_local Plans& plans = *std::make_unique<Plans>().release();  // never freed
  return plans.try_emplace(shape, shape).first->second;
}

std::string why_cudnn_absent() { return ""; }
std::string describe_cudnn() { return "emulated"; }

}  // namespace longnet
