// Scaled-dot-product attention on 4-D strided views: what a cuDNN plan is made for.
#pragma once
#include <array>
#include <compare>
#include <cstdint>
#include <string>

#include "kernels/cuda/device_kernel.h"
#include "kernels/cuda/strided_view.h"

namespace longnet {

// [outer][inner][rows][head_dim]; strides of the first three dimensions in elements. Lane stride 1.
struct SdpaShape {
  int64_t outer = 1, inner = 1, rows = 0, keys = 0, head_dim = 64;
  std::array<int64_t, 3> q{}, k{}, v{}, o{}, lse{};
  DeviceElement element = DeviceElement::kBFloat16;  // of Q, K, V and O; LSE is fp32
  ViewMask mask = ViewMask::kNone;
  auto operator<=>(const SdpaShape&) const = default;
};

// Returns the shape of the launch that computes a view's tasks, with contiguous 16-bit results. The
// stride of a dimension of one element does not matter, but cuDNN requires a positive one.
SdpaShape sdpa_shape(const StridedView& view, int64_t head_dim, DeviceElement element);

// Empty when every address that the strides reach is 16-byte aligned, given aligned pointers: plans
// are built without a word for others.
std::string why_misaligned(const SdpaShape& shape);

}  // namespace longnet
