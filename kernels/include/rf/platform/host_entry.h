// How tests/platform/host calls a kernel: one RfHostKernel for each, found by its symbol's name.
// Included after the kernel's source by the C++ that build.py writes around it.
#pragma once

namespace rf::host {

template <class T>
inline constexpr bool kIsPointer = false;
template <class T>
inline constexpr bool kIsPointer<T*> = true;

template <class T>
struct Plain {
  using Type = T;
};
template <class T>
struct Plain<T* __restrict> {
  using Type = T*;
};

template <class, int... kIndex>
struct Indices {};

template <auto kFunction>
struct Entry;

template <class... Args, void (*kFunction)(Args...)>
struct Entry<kFunction> {
  static constexpr int kCount = sizeof...(Args);

  struct Layout {
    uint16_t offset[kCount + 1] = {};
    uint16_t size[kCount + 1] = {sizeof(Args)...};
    uint8_t is_pointer[kCount + 1] = {kIsPointer<typename Plain<Args>::Type>...};
    constexpr Layout() {
      uint16_t end = 0;
      for (int i = 0; i < kCount; i++) {
        offset[i] = static_cast<uint16_t>((end + size[i] - 1) / size[i] * size[i]);
        end = static_cast<uint16_t>(offset[i] + size[i]);
      }
    }
  };
  static constexpr Layout kLayout{};

  // Reads the argument buffer, which is no memory of the device.
  template <class T>
  __attribute__((no_sanitize("address"))) static T read(const unsigned char* address) {
    T value;
    __builtin_memcpy(&value, address, sizeof(T));
    return value;
  }

  template <int... kIndex>
  __attribute__((no_sanitize("address"))) static void call_with(const unsigned char* args,
                                                                Indices<int, kIndex...>) {
    kFunction(read<typename Plain<Args>::Type>(args + kLayout.offset[kIndex])...);
  }
  static void call(const unsigned char* args) {
    call_with(args, __make_integer_seq<Indices, int, kCount>{});
  }
};

}  // namespace rf::host

#define RF_HOST_KERNEL(kernel, max_threads)                                                     \
  extern "C" __attribute__((visibility("default"))) const RfHostKernel rf_host_kernel_##kernel; \
  const RfHostKernel rf_host_kernel_##kernel = {                                                \
      #kernel,                                                                                  \
      max_threads,                                                                              \
      rf::host::Entry<kernel>::kCount,                                                          \
      rf::host::Entry<kernel>::kLayout.offset,                                                  \
      rf::host::Entry<kernel>::kLayout.size,                                                    \
      rf::host::Entry<kernel>::kLayout.is_pointer,                                              \
      rf::host::Entry<kernel>::call,                                                            \
  };
