// Libraries that may be absent when a program starts: opened by name when they are needed.
#pragma once
#include <string>
#include <vector>

namespace longnet {

class DynamicLibrary {
 public:
  // Opens the first of `names` that the loader finds; if none, is_open() is false and error() is
  // the reason.
  explicit DynamicLibrary(const std::vector<std::string>& names);
  bool is_open() const { return handle_ != nullptr; }
  const std::string& error() const { return error_; }
  const std::string& name() const { return name_; }
  // Null when the library has no such symbol.
  void* find(const char* symbol) const;
  // Throws Error that names library and symbol.
  template <class Function>
  void load(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(require(symbol));
  }

 private:
  void* require(const char* symbol) const;
  void* handle_ = nullptr;  // never closed: GPU libraries do not like to be unloaded
  std::string name_, error_;
};

}  // namespace longnet
