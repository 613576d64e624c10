# Lets the processor load a cache line that compiled code will use soon, where the C compiler has a way to say so.

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define kalda_prefetch(address) __builtin_prefetch(address)
    #else
    #define kalda_prefetch(address) ((void)0)
    #endif
    """
    void kalda_prefetch(const void* address) noexcept nogil
