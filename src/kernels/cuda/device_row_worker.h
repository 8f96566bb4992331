// RowWorker on the calling thread's GPU: tasks hold addresses of the device. Calls return when the
// device has finished; `threads` means nothing to it.
#pragma once
#include <memory>

#include "kernels/row_worker.h"

namespace longnet {

std::unique_ptr<RowWorker> make_device_row_worker();

}  // namespace longnet
