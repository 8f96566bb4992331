#include "kernels/cuda/device_model.h"

#include "kernels/cuda/device_gemm.h"
#include "kernels/cuda/model_tasks.h"
#include "kernels/model_checks.h"

namespace longnet {
namespace {

int64_t workspace_bytes(const auto&) { return 0; }

int64_t aligned(int64_t bytes) { return ceil_div(bytes, int64_t{256}) * 256; }

// ---- products: what the library takes, from what is stored ----

// Operands of fp32 are rounded to bf16, but for products of fp32 alone that are no model's in bf16:
// weights, gradients of logits, and activations where ranks that split heads sum them up.
bool is_rounded(const GemmTask& task, const Matrix& x) {
  const auto narrow = [](const Matrix& m) { return m.dtype == DType::kBFloat16; };
  return !narrow(x) && (task.of_bf16 || narrow(task.a) || narrow(task.b) || narrow(task.c));
}
// A bias has to be stored as c is.
Matrix bias_of(const GemmTask& task) {
  return {const_cast<float*>(task.bias), 1, task.n(), task.n(), DType::kFloat32};
}
bool rounds_bias(const GemmTask& task) {
  return task.bias != nullptr && task.c.dtype == DType::kBFloat16;
}
Matrix rounded_form(const Matrix& x) {
  return {nullptr, x.rows, x.cols, ceil_div(x.cols, int64_t{8}) * 8, DType::kBFloat16};
}
int64_t bytes_of(const Matrix& x) { return aligned(x.rows * x.stride * dtype_bytes(x.dtype)); }

int64_t workspace_bytes(const GemmTask& task) {
  int64_t bytes = kGemmWorkspace;
  for (const Matrix& x : {task.a, task.b})
    if (is_rounded(task, x)) bytes += bytes_of(rounded_form(x));
  return bytes + (rounds_bias(task) ? bytes_of(rounded_form(bias_of(task))) : 0);
}

void prepare_task(const GemmTask& task, std::byte* workspace, MemoryLedger& ledger,
                  Prepared& work) {
  if (task.m() == 0 || task.n() == 0) return;
  GemmTask product = task;
  std::byte* at = workspace + kGemmWorkspace;
  const auto rounded = [&](const Matrix& x) {
    Matrix to = rounded_form(x);
    to.data = at;
    at += bytes_of(to);
    prepare_rounding(x, to, work);
    return to;
  };
  if (is_rounded(task, task.a)) product.a = rounded(task.a);
  if (is_rounded(task, task.b)) product.b = rounded(task.b);
  if (rounds_bias(task)) product.bias = static_cast<const float*>(rounded(bias_of(task)).data);
  work.then(prepare_gemm(product, ledger, workspace));
}

}  // namespace

std::string why_device_model_absent() { return why_cublaslt_absent(); }

int64_t model_workspace_bytes(const ModelTask& task) {
  return std::visit([](const auto& what) { return workspace_bytes(what); }, task);
}

Prepared prepare_model_task(const ModelTask& task, MemoryLedger& ledger, std::byte* workspace) {
  Prepared work;
  const int64_t bytes = model_workspace_bytes(task);
  if (workspace == nullptr && bytes > 0) workspace = work.workspace(bytes, ledger);
  std::visit(
      [&]<class Task>(const Task& what) {
        check_task(what);
        if constexpr (std::is_same_v<Task, GemmTask>)
          prepare_task(what, workspace, ledger, work);
        else if constexpr (std::is_same_v<Task, RotateTask>)
          prepare_rotate(what, ledger, work);
        else
          prepare_task(what, workspace, work);
      },
      task);
  return work;
}

}  // namespace longnet
