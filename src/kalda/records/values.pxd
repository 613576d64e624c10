# What `consuming` calls of `values` in C, and what `values` calls of Python. The functions themselves are in values.py.

cdef extern from "Python.h":
    # Cython's own declaration takes an object, which newer compilers refuse to pass as a PyTypeObject pointer.
    object PyType_GenericAlloc(type cls, Py_ssize_t items)

cdef tuple _read_headers(const unsigned char* p, Py_ssize_t pos, Py_ssize_t end, Py_ssize_t count)
