#include "kernels/cuda/cublaslt_functions.h"

namespace longnet {

const CublasLtFunctions& cublaslt() {
  static const CublasLtFunctions functions;
  return functions;
}

}  // namespace longnet
