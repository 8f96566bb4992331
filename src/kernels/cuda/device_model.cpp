#include "kernels/cuda/device_model.h"

#include "kernels/cuda/model_workspace.h"
#include "kernels/model_checks.h"

namespace longnet {
namespace {

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
