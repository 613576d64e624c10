cdef extern from "Python.h":
    # Cython's own declaration takes an object, which newer compilers refuse to pass as a PyTypeObject pointer.
    object PyType_GenericAlloc(type cls, Py_ssize_t items)
