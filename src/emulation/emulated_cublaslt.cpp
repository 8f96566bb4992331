// cuBLASLt on the emulated device: the product that the library's own descriptors describe, by the
// reference. A column-major matrix is the transposed row-major one: d = op(a) op(b) is computed as
// d^T = op(b)^T op(a)^T.
#include "core/random.h"
#include "emulation/emulated_device.h"
#include "kernels/cuda/cublaslt_functions.h"
#include "kernels/testing/reference_model_kernel.h"

namespace longnet {
namespace {

constexpr size_t kWorkspace = 64;

// Functions of the library that the product does not call.
struct Attributes {
  const DynamicLibrary& library = cublaslt().library;
  decltype(&cublasLtMatmulDescGetAttribute) desc =
      library.require("cublasLtMatmulDescGetAttribute");
  decltype(&cublasLtMatrixLayoutGetAttribute) layout =
      library.require("cublasLtMatrixLayoutGetAttribute");
};
const Attributes& attributes() {
  static const Attributes found;
  return found;
}

template <class T, class Of, class Name>
T get(cublasStatus_t (*attribute)(Of, Name, void*, size_t, size_t*), Of of, Name name) {
  T value{};
  check(attribute(of, name, &value, sizeof value, nullptr) == CUBLAS_STATUS_SUCCESS,
        "cuBLASLt: no attribute ", int(name));
  return value;
}
Matrix transposed(const void* data, cublasLtMatrixLayout_t layout) {
  const auto size = [&](auto name) { return get<int64_t>(attributes().layout, layout, name); };
  const auto type = get<uint32_t>(attributes().layout, layout, CUBLASLT_MATRIX_LAYOUT_TYPE);
  return {const_cast<void*>(data), size(CUBLASLT_MATRIX_LAYOUT_COLS),
          size(CUBLASLT_MATRIX_LAYOUT_ROWS), size(CUBLASLT_MATRIX_LAYOUT_LD),
          type == CUDA_R_32F ? DType::kFloat32 : DType::kBFloat16};
}

cublasStatus_t multiply(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
                        const void* a, cublasLtMatrixLayout_t of_a, const void* b,
                        cublasLtMatrixLayout_t of_b, const void* beta, const void* c,
                        cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t of_d,
                        const cublasLtMatmulAlgo_t*, void* workspace, size_t bytes,
                        cudaStream_t stream) {
  const auto is_transposed = [&](auto name) {
    return get<int32_t>(attributes().desc, desc, name) == CUBLAS_OP_T;
  };
  const float factor = *static_cast<const float*>(beta);
  check(*static_cast<const float*>(alpha) == 1 && (factor == 0 || factor == 1) && c == d,
        "cuBLASLt is emulated for c = a b and c += a b");
  const auto [first, end] = emulated_buffer(workspace);
  check(bytes == kWorkspace && end - first >= ptrdiff_t(bytes), "cuBLASLt: no workspace");
  GemmTask task{.a = transposed(b, of_b),
                .b = transposed(a, of_a),
                .c = transposed(d, of_d),
                .transpose_a = is_transposed(CUBLASLT_MATMUL_DESC_TRANSB),
                .transpose_b = is_transposed(CUBLASLT_MATMUL_DESC_TRANSA),
                .accumulate = factor == 1};
  const void* bias = nullptr;  // stored as d is
  if (get<uint32_t>(attributes().desc, desc, CUBLASLT_MATMUL_DESC_EPILOGUE) ==
      CUBLASLT_EPILOGUE_BIAS)
    bias = get<const void*>(attributes().desc, desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
  emulate_launch(stream, [task, bias]() mutable {
    std::vector<float> numbers;
    for (int64_t j = 0; bias != nullptr && j < task.n(); ++j)
      numbers.push_back(task.c.dtype == DType::kFloat32
                            ? static_cast<const float*>(bias)[j]
                            : bf16_value(static_cast<const uint16_t*>(bias)[j]));
    if (bias != nullptr) task.bias = numbers.data();
    make_reference_model_kernel()->run(task, 1);
  });
  return CUBLAS_STATUS_SUCCESS;
}

CublasLtFunctions functions() {
  CublasLtFunctions f;
  f.create = [](cublasLtHandle_t* made) {
    static int64_t any;
    return *made = reinterpret_cast<cublasLtHandle_t>(&any), CUBLAS_STATUS_SUCCESS;
  };
  f.heuristic = [](auto, auto, auto, auto, auto, auto, auto, int, auto* results, int* found) {
    results->workspaceSize = kWorkspace;
    return *found = 1, CUBLAS_STATUS_SUCCESS;
  };
  f.matmul = multiply;
  return f;
}

}  // namespace

const CublasLtFunctions& cublaslt() {
  static const CublasLtFunctions all = functions();
  return all;
}

}  // namespace longnet
