#include "comm/nccl/nccl_functions.h"

namespace longnet {

const NcclFunctions& nccl() {
  static const NcclFunctions functions;
  return functions;
}

}  // namespace longnet
