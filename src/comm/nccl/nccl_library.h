// NCCL, as far as others need to know it. <nccl.h> stays in this folder.
#pragma once
#include <string>

namespace longnet {

// Empty when the library is there and fits the headers of the build, else why not.
std::string why_nccl_absent();
// "2.28.9 (headers 2.28.9)", or why not.
std::string describe_nccl();

}  // namespace longnet
