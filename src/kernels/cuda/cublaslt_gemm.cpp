#include <bit>
#include <map>
#include <memory>

#include "kernels/cuda/cublaslt_functions.h"
#include "kernels/cuda/device_model.h"
#include "kernels/cuda/model_workspace.h"
#include "kernels/model_checks.h"

namespace longnet {
namespace {

void check_cublaslt(cublasStatus_t status, Located what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail_at(concat("cuBLASLt, ", what.text, ": ", cublaslt().status_string(status)), what.where);
}

struct Destroy {
  void operator()(cublasLtMatmulDescOpaque_t* desc) const { cublaslt().destroy_desc(desc); }
  void operator()(cublasLtMatrixLayoutOpaque_t* layout) const { cublaslt().destroy_layout(layout); }
  void operator()(cublasLtMatmulPreferenceOpaque_t* p) const { cublaslt().destroy_preference(p); }
};
template <class T>
using Handle = std::unique_ptr<T, Destroy>;

// This thread's handle on its device. Never destroyed: the library's statics may go before ours.
cublasLtHandle_t handle_of_this_thread() {
  static thread_local std::map<int, cublasLtHandle_t> handles;
  cublasLtHandle_t& handle = handles[current_device()];
  if (handle == nullptr) check_cublaslt(cublaslt().create(&handle), "cublasLtCreate");
  return handle;
}

// The stored matrix, transposed: the same memory in columns.
Handle<cublasLtMatrixLayoutOpaque_t> layout_of(const Matrix& x) {
  cublasLtMatrixLayout_t made = nullptr;
  const cudaDataType_t type = x.dtype == DType::kFloat32 ? CUDA_R_32F : CUDA_R_16BF;
  check_cublaslt(
      cublaslt().create_layout(&made, type, uint64_t(x.cols), uint64_t(x.rows), x.stride),
      "matrix layout");
  return Handle<cublasLtMatrixLayoutOpaque_t>(made);
}

class Product {
 public:
  explicit Product(const GemmTask& task)
      : task_(task),
        handle_(handle_of_this_thread()),
        first_(layout_of(task.b)),
        second_(layout_of(task.a)),
        result_(layout_of(task.c)) {
    cublasLtMatmulDesc_t made = nullptr;
    check_cublaslt(cublaslt().create_desc(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "product");
    desc_.reset(made);
    set(CUBLASLT_MATMUL_DESC_TRANSA, task.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, task.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (task.bias != nullptr) {  // a number for each row of the library's result
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, task.bias);
    }
    choose_algorithm();
  }
  int64_t workspace_bytes() const { return int64_t(chosen_.workspaceSize); }
  void launch(std::byte* workspace, const Stream& stream) const {
    const float one = 1, beta = task_.accumulate ? 1 : 0;
    check_cublaslt(cublaslt().matmul(handle_, desc_.get(), &one, task_.b.data, first_.get(),
                                     task_.a.data, second_.get(), &beta, task_.c.data,
                                     result_.get(), task_.c.data, result_.get(), &chosen_.algo,
                                     workspace, chosen_.workspaceSize, stream.handle()),
                   "cublasLtMatmul");
  }

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t which, T value) {
    check_cublaslt(cublaslt().set_desc(desc_.get(), which, &value, sizeof value), "attribute");
  }
  template <class T>
  void prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t which,
              T value) {
    check_cublaslt(cublaslt().set_preference(preference, which, &value, sizeof value),
                   "preference");
  }
  void choose_algorithm() {
    cublasLtMatmulPreference_t made = nullptr;
    check_cublaslt(cublaslt().create_preference(&made), "preference");
    const Handle<cublasLtMatmulPreferenceOpaque_t> owner(made);
    prefer(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kGemmWorkspace});
    const auto alignment = [](const Matrix& x) {  // the library asks for 256 bytes at most
      return uint32_t{1} << std::countr_zero(reinterpret_cast<uintptr_t>(x.data) | 256);
    };
    prefer(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(task_.b));
    prefer(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(task_.a));
    prefer(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(task_.c));
    prefer(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(task_.c));
    // Parts of a sum over k are added in fp32, whatever c is stored in.
    prefer(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    int found = 0;
    const cublasStatus_t status =
        cublaslt().heuristic(handle_, desc_.get(), first_.get(), second_.get(), result_.get(),
                             result_.get(), made, 1, &chosen_, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED)
      found = 0;
    else
      check_cublaslt(status, "cublasLtMatmulAlgoGetHeuristic");
    check(found > 0, "cuBLASLt has no algorithm for a product of ", task_.m(), " x ", task_.n(),
          " x ", task_.k(), " from ", to_string(task_.a.dtype), " to ", to_string(task_.c.dtype));
  }

  GemmTask task_;
  cublasLtHandle_t handle_;
  Handle<cublasLtMatrixLayoutOpaque_t> first_, second_, result_;
  Handle<cublasLtMatmulDescOpaque_t> desc_;
  cublasLtMatmulHeuristicResult_t chosen_{};
};

}  // namespace

std::string why_cublaslt_absent() { return cublaslt().missing; }

std::string describe_cublaslt() {
  if (!cublaslt().missing.empty()) return cublaslt().missing;
  return concat(library_version_text(int(cublaslt().version())), " (headers ", CUBLAS_VER_MAJOR,
                ".", CUBLAS_VER_MINOR, ".", CUBLAS_VER_PATCH, ")");
}

Prepared prepare_gemm(const GemmTask& task, MemoryLedger& ledger, std::byte* workspace) {
  check(cublaslt().missing.empty(), "", cublaslt().missing);
  check_task(task);
  check(task.a.dtype == task.b.dtype, "cuBLASLt: a is stored in ", to_string(task.a.dtype),
        ", b in ", to_string(task.b.dtype), ": both must be alike");
  check(task.c.dtype == task.a.dtype || task.c.dtype == DType::kFloat32,
        "cuBLASLt: c must be stored as a and b are, or in fp32");
  Prepared work;
  const auto product = std::make_shared<const Product>(task);
  if (workspace == nullptr && product->workspace_bytes() > 0)
    workspace = work.workspace(product->workspace_bytes(), ledger);
  work.then([product, workspace](const Stream& stream) { product->launch(workspace, stream); });
  return work;
}

}  // namespace longnet
