#include "core/cuda/dynamic_library.h"

#include <dlfcn.h>

#include "core/check.h"

namespace longnet {

DynamicLibrary::DynamicLibrary(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle_) {
      name_ = name;
      return;
    }
    const char* const why = dlerror();
    error_ += (error_.empty() ? "" : "; ") + std::string(why ? why : name);
  }
}

void* DynamicLibrary::find(const char* symbol) const {
  return handle_ ? dlsym(handle_, symbol) : nullptr;
}

void* DynamicLibrary::require(const char* symbol) const {
  check(handle_ != nullptr, "library not loaded: ", error_);
  void* const at = dlsym(handle_, symbol);
  check(at != nullptr, "library ", name_, " has no ", symbol,
        ": another version is installed than needed");
  return at;
}

}  // namespace longnet
