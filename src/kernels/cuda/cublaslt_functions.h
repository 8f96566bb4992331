// The functions of cuBLASLt that this project calls, found when first asked for.
#pragma once
#include <cublasLt.h>

#include <string>

#include "core/cuda/dynamic_library.h"

namespace longnet {

inline const DynamicLibrary& cublaslt_library() {
  static const DynamicLibrary library(concat("libcublasLt.so.", CUBLAS_VER_MAJOR).c_str());
  return library;
}

struct CublasLtFunctions {
  // Empty when there is a library, else why not.
  std::string missing =
      cublaslt_library().is_open()
          ? ""
          : concat("cuBLASLt is not on the library path: ", cublaslt_library().error());
  decltype(&cublasLtGetVersion) version = cublaslt_library().require("cublasLtGetVersion");
  decltype(&cublasLtGetStatusString) status_string =
      cublaslt_library().require("cublasLtGetStatusString");
  decltype(&cublasLtMatmulDescCreate) create_desc =
      cublaslt_library().require("cublasLtMatmulDescCreate");
  decltype(&cublasLtMatmulDescDestroy) destroy_desc =
      cublaslt_library().require("cublasLtMatmulDescDestroy");
  decltype(&cublasLtMatmulDescSetAttribute) set_desc =
      cublaslt_library().require("cublasLtMatmulDescSetAttribute");
  decltype(&cublasLtMatmulDescGetAttribute) get_desc =
      cublaslt_library().require("cublasLtMatmulDescGetAttribute");
  decltype(&cublasLtMatrixLayoutCreate) create_layout =
      cublaslt_library().require("cublasLtMatrixLayoutCreate");
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout =
      cublaslt_library().require("cublasLtMatrixLayoutDestroy");
  decltype(&cublasLtMatrixLayoutGetAttribute) get_layout =
      cublaslt_library().require("cublasLtMatrixLayoutGetAttribute");
  decltype(&cublasLtMatmulPreferenceCreate) create_preference =
      cublaslt_library().require("cublasLtMatmulPreferenceCreate");
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference =
      cublaslt_library().require("cublasLtMatmulPreferenceDestroy");
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference =
      cublaslt_library().require("cublasLtMatmulPreferenceSetAttribute");
  // These need a device.
  decltype(&cublasLtCreate) create = cublaslt_library().require("cublasLtCreate");
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic =
      cublaslt_library().require("cublasLtMatmulAlgoGetHeuristic");
  decltype(&cublasLtMatmul) matmul = cublaslt_library().require("cublasLtMatmul");
};

const CublasLtFunctions& cublaslt();

}  // namespace longnet
