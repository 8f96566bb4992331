// cuDNN's part of the `cudnn` kernel on the emulated device: a plan attends a strided view by the
// CPU's kernel. Rows that see no key are NaN with an LSE of -inf, for the library promises
// nothing.
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "core/check.h"
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

class EmulatedPlan final : public SdpaPlan {
 public:
  explicit EmulatedPlan(const SdpaShape& shape) : shape_(shape) {}
  int64_t workspace_bytes() const override { return 64; }
  void launch(const SdpaPointers& pointers, void* workspace, const Stream& stream) const override {
    check(workspace != nullptr, "cuDNN: no workspace");
    emulate_launch(stream, [shape = shape_, pointers] { attend_view(shape, pointers); });
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
