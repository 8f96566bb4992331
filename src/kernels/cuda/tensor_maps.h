// Tensor maps, encoded by the driver: TMA instructions read them instead of an address.
#pragma once
#include <cstddef>

#include "kernels/cuda/device_kernel.h"
#include "kernels/cuda/tensor_view.h"

namespace longnet {

// A CUtensorMap; lists of them lie on the device.
struct alignas(64) TensorMap {
  std::byte bits[128];
};

// [head_dim][rows][3 dimensions] of 16 bits, read in boxes of 64 dims x `box_rows`, swizzled by 128
// bytes; what is outside reads as zero. Throws Error with the driver's refusal.
TensorMap encode_tensor_map(const TensorView& view, DeviceElement element, int64_t head_dim,
                            int box_rows);

}  // namespace longnet
