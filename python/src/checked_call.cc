// flashlatent._native._checked: a function whose refused arguments are explained by flashlatent._arguments.
#include <algorithm>
#include <cstddef>

#include "python/src/bindings.h"
// Python's, after nanobind has included Python.h.
#include <structmember.h>

namespace flashlatent::python {

namespace {

/// In front of a function of nanobind, at the cost of one more call: a wrapper in Python takes a microsecond.
struct CheckedCall {
  PyObject base;
  PyObject* function;
  PyObject* places;   // a tuple: is the argument in this place, self included, a number?
  PyObject* numbers;  // a set: the names of arguments that are numbers
  vectorcallfunc call;
};

CheckedCall* as_checked(PyObject* self) {
  return reinterpret_cast<CheckedCall*>(self);
}

/// Replaces nanobind's TypeError by what flashlatent._arguments.explain() makes of the call.
void explain(PyObject* function, PyObject* const* arguments, std::size_t count, PyObject* names) {
  const nb::python_error error;  // takes it, and puts it back below
  try {
    nb::list values;
    const std::size_t named = names == nullptr ? 0 : nb::len(nb::handle(names));
    for (std::size_t i = 0; i < count; ++i) values.append(nb::handle(arguments[i]));
    nb::dict options;
    for (std::size_t i = 0; i < named; ++i) options[nb::handle(names)[i]] = nb::handle(arguments[count + i]);
    nb::module_::import_("flashlatent._arguments")
        .attr("explain")(nb::handle(function), values, options, error.value());
  } catch (nb::python_error& raised) {
    raised.restore();
    return;
  }
  PyErr_SetObject(error.type().ptr(), error.value().ptr());
}

bool is_bool(PyObject* object) {
  return object == Py_True || object == Py_False;
}

/// Is True or False given for a number? nanobind takes them, and window=True would be a window of one token.
bool gives_bool_for_number(const CheckedCall* call, PyObject* const* arguments, Py_ssize_t count,
                           PyObject* names) {
  const Py_ssize_t places = std::min(count, PyTuple_Size(call->places));
  for (Py_ssize_t i = 0; i < places; ++i) {
    if (is_bool(arguments[i]) && PyTuple_GetItem(call->places, i) == Py_True) return true;
  }
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_Size(names);
  for (Py_ssize_t i = 0; i < named; ++i) {
    if (is_bool(arguments[count + i]) && PySet_Contains(call->numbers, PyTuple_GetItem(names, i)) == 1)
      return true;
  }
  return false;
}

PyObject* call_checked(PyObject* self, PyObject* const* arguments, std::size_t count_and_flag,
                       PyObject* names) {
  PyObject* function = as_checked(self)->function;
  const Py_ssize_t count = PyVectorcall_NARGS(count_and_flag);
  PyObject* result = nullptr;
  if (gives_bool_for_number(as_checked(self), arguments, count, names)) {
    PyErr_SetString(PyExc_TypeError, "incompatible function arguments");  // nanobind's words
  } else {
    result = PyObject_Vectorcall(function, arguments, count_and_flag, names);
  }
  if (result == nullptr && PyErr_ExceptionMatches(PyExc_TypeError) != 0) {
    explain(function, arguments, static_cast<std::size_t>(count), names);
  }
  return result;
}

/// A method of an instance.
PyObject* bind_checked(PyObject* self, PyObject* instance, PyObject* /*type*/) {
  if (instance == nullptr) return nb::borrow(self).release().ptr();
  static const nb::object& method = *new nb::object(nb::module_::import_("types").attr("MethodType"));
  return PyObject_CallFunctionObjArgs(method.ptr(), self, instance, nullptr);
}

/// Attributes are the function's, but for those that flashlatent._signatures makes of its signature.
PyObject* attribute_of_checked(PyObject* self, PyObject* name) {
  PyObject* function = as_checked(self)->function;
  for (const char* made : {"__doc__", "__signature__", "__text_signature__"}) {
    if (PyUnicode_CompareWithASCIIString(name, made) != 0) continue;
    try {
      const nb::object maker = nb::module_::import_("flashlatent._signatures").attr("attribute");
      return nb::object(maker(nb::handle(function), nb::handle(name))).release().ptr();
    } catch (nb::python_error& raised) {
      raised.restore();
      return nullptr;
    }
  }
  return PyObject_GetAttr(function, name);
}

/// The same for object.__getattribute__(), which inspect.getdoc() calls and which does not ask
/// attribute_of_checked().
PyObject* doc_of_checked(PyObject* self, void* /*closure*/) {
  const nb::str name("__doc__");
  return attribute_of_checked(self, name.ptr());
}

void free_checked(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Py_DECREF(as_checked(self)->function);
  Py_DECREF(as_checked(self)->places);
  Py_DECREF(as_checked(self)->numbers);
  PyObject_Free(self);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

PyTypeObject* make_type() {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(CheckedCall, call), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  static PyGetSetDef attributes[] = {{"__doc__", doc_of_checked, nullptr, nullptr, nullptr},
                                     {nullptr, nullptr, nullptr, nullptr, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_members, members},
                                {Py_tp_getset, attributes},
                                {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_descr_get, reinterpret_cast<void*>(bind_checked)},
                                {Py_tp_getattro, reinterpret_cast<void*>(attribute_of_checked)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(free_checked)},
                                {0, nullptr}};
  static PyType_Spec spec = {"flashlatent._native.CheckedCall", sizeof(CheckedCall), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
                             slots};
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) throw nb::python_error();
  return reinterpret_cast<PyTypeObject*>(type);
}

nb::object checked(nb::handle function, const nb::tuple& places, const nb::object& numbers) {
  static PyTypeObject* type = make_type();
  auto* self = PyObject_New(CheckedCall, type);
  if (self == nullptr) throw nb::python_error();
  self->function = nb::borrow(function).release().ptr();
  self->places = nb::borrow(places).release().ptr();
  self->numbers = nb::borrow(numbers).release().ptr();
  self->call = call_checked;
  return nb::steal(reinterpret_cast<PyObject*>(self));
}

}  // namespace

void bind_checked_call(nb::module_& module) {
  using namespace nb::literals;
  module.def(
      "_checked", &checked, "function"_a, "places"_a, "numbers"_a,
      "The same function; a call whose arguments it does not take raises ArgumentTypeError. `places`: is the "
      "argument in this place, self included, a number? `numbers`: a set of such arguments' names.");
}

}  // namespace flashlatent::python
