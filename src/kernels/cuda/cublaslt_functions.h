// The functions of cuBLASLt that this project calls, found when first asked for.
#pragma once
#include <cublasLt.h>

#include <string>

#include "core/cuda/dynamic_library.h"

namespace longnet {

struct CublasLtFunctions {
  DynamicLibrary library{concat("libcublasLt.so.", CUBLAS_VER_MAJOR).c_str()};
  std::string missing = library.why_missing("cuBLASLt");
  decltype(&cublasLtGetVersion) version = library.require("cublasLtGetVersion");
  decltype(&cublasLtGetStatusString) status_string = library.require("cublasLtGetStatusString");
  decltype(&cublasLtMatmulDescCreate) create_desc = library.require("cublasLtMatmulDescCreate");
  decltype(&cublasLtMatmulDescDestroy) destroy_desc = library.require("cublasLtMatmulDescDestroy");
  decltype(&cublasLtMatmulDescSetAttribute) set_desc =
      library.require("cublasLtMatmulDescSetAttribute");
  decltype(&cublasLtMatrixLayoutCreate) create_layout =
      library.require("cublasLtMatrixLayoutCreate");
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout =
      library.require("cublasLtMatrixLayoutDestroy");
  decltype(&cublasLtMatmulPreferenceCreate) create_preference =
      library.require("cublasLtMatmulPreferenceCreate");
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference =
      library.require("cublasLtMatmulPreferenceDestroy");
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference =
      library.require("cublasLtMatmulPreferenceSetAttribute");
  // These need a device.
  decltype(&cublasLtCreate) create = library.require("cublasLtCreate");
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic =
      library.require("cublasLtMatmulAlgoGetHeuristic");
  decltype(&cublasLtMatmul) matmul = library.require("cublasLtMatmul");
};

const CublasLtFunctions& cublaslt();

}  // namespace longnet
