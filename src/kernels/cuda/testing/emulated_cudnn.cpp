// cuDNN's part of the `cudnn` kernel on the emulated device: a plan attends a strided view in
// double. Rows that see no key are NaN with an LSE of -inf, for the library promises nothing.
#include <cmath>
#include <limits>
#include <vector>

#include "core/check.h"
#include "core/cuda/testing/emulated_device.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/cudnn_kernel.h"
#include "kernels/cuda/testing/emulated_block.h"

namespace longnet {

struct SdpaPlan::State {
  SdpaShape shape;
};

namespace {

int64_t visible_keys(const SdpaShape& s, int64_t row) {
  switch (s.mask) {
    case ViewMask::kNone:
      return s.keys;
    case ViewMask::kUpToOwn:
      return std::min(s.keys, row + 1);
    case ViewMask::kBeforeOwn:
      return std::min(s.keys, row);
  }
  return 0;
}

int64_t at(const std::array<int64_t, 3>& strides, int64_t outer, int64_t inner, int64_t row) {
  return outer * strides[0] + inner * strides[1] + row * strides[2];
}

template <class Element>
void attend_row(const SdpaShape& s, const SdpaPointers& p, int64_t outer, int64_t inner,
                int64_t row) {
  const auto lane = [](const void* base, int64_t place) {
    return double(Element::value(static_cast<const uint16_t*>(base)[place]));
  };
  const int64_t q = at(s.q, outer, inner, row), keys = visible_keys(s, row);
  std::vector<double> scores(static_cast<size_t>(keys)), out(static_cast<size_t>(s.head_dim));
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t j = 0; j < keys; ++j) {
    double score = 0;
    const int64_t k = at(s.k, outer, inner, j);
    for (int64_t c = 0; c < s.head_dim; ++c) score += lane(p.q, q + c) * lane(p.k, k + c);
    scores[size_t(j)] = score / std::sqrt(double(s.head_dim));
    top = std::max(top, scores[size_t(j)]);
  }
  for (int64_t j = 0; j < keys; ++j) {
    const double weight = std::exp(scores[size_t(j)] - top);
    sum += weight;
    for (int64_t c = 0; c < s.head_dim; ++c)
      out[size_t(c)] += weight * lane(p.v, at(s.v, outer, inner, j) + c);
  }
  for (int64_t c = 0; c < s.head_dim; ++c)  // 0 / 0 where there is no key
    static_cast<uint16_t*>(p.o)[at(s.o, outer, inner, row) + c] =
        Element::bits(float(out[size_t(c)] / sum));
  p.lse[at(s.lse, outer, inner, row)] = float(top + std::log(sum));
}

template <class Element>
void attend_view(const SdpaShape& s, const SdpaPointers& p) {
  for (int64_t outer = 0; outer < s.outer; ++outer)
    for (int64_t inner = 0; inner < s.inner; ++inner)
      for (int64_t row = 0; row < s.rows; ++row) attend_row<Element>(s, p, outer, inner, row);
}

}  // namespace

SdpaPlan::SdpaPlan(const SdpaShape& shape) : state_(std::make_unique<State>(State{shape})) {
  const std::string misaligned = why_misaligned(shape);
  check(misaligned.empty(), "cuDNN: ", misaligned);
}
SdpaPlan::~SdpaPlan() = default;
int64_t SdpaPlan::workspace_bytes() const { return 64; }
void SdpaPlan::launch(const SdpaPointers& pointers, void* workspace, const Stream& stream) const {
  check(workspace != nullptr, "cuDNN: no workspace");
  emulate_launch(stream, [shape = state_->shape, pointers] {
    (shape.element == DeviceElement::kFloat16 ? attend_view<EmulatedFp16>
                                              : attend_view<EmulatedBf16>)(shape, pointers);
  });
}
std::shared_ptr<const SdpaPlan> cached_plan(const SdpaShape& shape, int) {
  return std::make_shared<SdpaPlan>(shape);
}

std::string why_cudnn_absent() { return ""; }
std::string describe_cudnn() { return "emulated"; }

}  // namespace longnet
