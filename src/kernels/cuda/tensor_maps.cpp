#include "kernels/cuda/tensor_maps.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <array>
#include <bit>

#include "core/check.h"
#include "core/cuda/cuda_check.h"

namespace longnet {
namespace {

constexpr uint32_t kBoxDims = 64;  // of 16 bits: the 128 bytes of the swizzle

// The driver is opened at run time: programs start without one.
using EncodeTiled = decltype(&cuTensorMapEncodeTiled);
EncodeTiled find_encoder() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                              cudaEnableDefault, &result),
             "looking for cuTensorMapEncodeTiled");
  check(found != nullptr, "kernel cuda_sm90a: the driver has no cuTensorMapEncodeTiled (CUDA 12)");
  return reinterpret_cast<EncodeTiled>(found);
}

}  // namespace

TensorMap encode_tensor_map(const TensorView& view, DeviceElement element, int64_t head_dim,
                            int box_rows) {
  static const EncodeTiled encode = find_encoder();
  std::array<cuuint64_t, 5> size{cuuint64_t(head_dim), cuuint64_t(view.rows)};
  // A dimension of one element has no stride that matters, but it must be a valid one.
  std::array<cuuint64_t, 4> stride{view.rows > 1 ? cuuint64_t(view.row_stride) * 2 : 256};
  for (size_t k = 0; k < 3; ++k) {
    size[k + 2] = cuuint64_t(view.count[k]);
    stride[k + 1] = view.count[k] > 1 ? cuuint64_t(view.step_bytes[k]) : 256;
  }
  const std::array<cuuint32_t, 5> box{kBoxDims, cuuint32_t(box_rows), 1, 1, 1};
  const std::array<cuuint32_t, 5> every{1, 1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult result =
      encode(&map,
             element == DeviceElement::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
             5, const_cast<void*>(view.first), size.data(), stride.data(), box.data(), every.data(),
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS, "kernel cuda_sm90a: cuTensorMapEncodeTiled refused (error ",
        int(result), ") rows ", view.rows, " x ", view.row_stride, ", counts ", view.count[0], " ",
        view.count[1], " ", view.count[2], ", steps ", view.step_bytes[0], " ", view.step_bytes[1],
        " ", view.step_bytes[2], " (bytes)");
  return std::bit_cast<TensorMap>(map);
}

}  // namespace longnet
