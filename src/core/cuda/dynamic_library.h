// Libraries that may be absent when a program starts: opened by name when they are needed.
#pragma once
#include <dlfcn.h>

#include <string>

#include "core/check.h"

namespace longnet {

class DynamicLibrary {
 public:
  // Becomes a pointer to a function of whatever type it is assigned to.
  struct Symbol {
    void* at;
    template <class Function>
    operator Function*() const {  // NOLINT: implicit
      return reinterpret_cast<Function*>(at);
    }
  };

  // Opens the library. If the loader does not find it, is_open() is false and error() says why.
  explicit DynamicLibrary(const char* name)
      : handle_(dlopen(name, RTLD_NOW | RTLD_GLOBAL)), name_(name) {
    if (handle_ != nullptr) return;
    const char* const why = dlerror();
    error_ = why ? why : name;
  }
  bool is_open() const { return handle_ != nullptr; }
  // Empty when it is open, else that the library, by this name, is missing, and why.
  std::string why_missing(const char* called) const {
    return is_open() ? "" : concat(called, " is not on the library path: ", error_);
  }
  const std::string& error() const { return error_; }
  // Null when the library has no such symbol.
  Symbol find(const char* symbol) const { return {handle_ ? dlsym(handle_, symbol) : nullptr}; }
  // Null when the library is absent. Throws Error when it has no such symbol.
  Symbol require(const char* symbol) const {
    const Symbol found = find(symbol);
    check(!is_open() || found.at != nullptr, "library ", name_, " has no ", symbol,
          ": another version is installed than needed");
    return found;
  }

 private:
  void* handle_;  // never closed: unloading GPU libraries is not safe
  std::string name_, error_;
};

}  // namespace longnet
