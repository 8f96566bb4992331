// Builds for GPUs alone: what asks for the cores' functions is linked there and never called.
#include "core/check.h"
#include "kernels/row_worker.h"

namespace longnet {

std::unique_ptr<RowWorker> make_cpu_row_worker() {
  throw UsageError("this build has no kernels for cores");
}

}  // namespace longnet
