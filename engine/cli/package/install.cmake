# cmake --install build: the program finds its policies and descriptions, and Lua the module (under /usr/local
# by itself).
# cpack -G DEB, in the build folder: the same as a package for Debian and Ubuntu.
install(TARGETS moonshift RUNTIME DESTINATION bin)
if(TARGET module)
    install(TARGETS module LIBRARY DESTINATION lib/lua/5.1)
endif()

file(GLOB described CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/models/catalog/*.json)
install(FILES ${described} DESTINATION share/moonshift/models/catalog)
install(DIRECTORY models/hardware models/papers DESTINATION share/moonshift/models
        FILES_MATCHING PATTERN "*.json" PATTERN "*.csv" PATTERN "README.md")
install(DIRECTORY policies DESTINATION share/moonshift)

file(GLOB pages CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/docs/*.md)
install(FILES ${pages} DESTINATION share/doc/moonshift/docs)
install(DIRECTORY docs/pictures DESTINATION share/doc/moonshift/docs FILES_MATCHING PATTERN "*.svg")
install(FILES README.md CHANGELOG.md LICENSE NOTICE models/tokenizer/LICENSE-UNICODE DESTINATION share/doc/moonshift)
if(written)
    install(FILES ${written}/moonshift.1 DESTINATION share/man/man1)
    install(FILES ${written}/moonshift DESTINATION share/bash-completion/completions)
    install(FILES ${written}/_moonshift DESTINATION share/zsh/site-functions)
endif()
set(package ${CMAKE_SOURCE_DIR}/engine/cli/package)
install(FILES ${package}/moonshift.service DESTINATION lib/systemd/system)
install(FILES ${package}/moonshift.env DESTINATION share/doc/moonshift)

# Of the package alone: what lies outside of the prefix, and the licence where Debian looks for it.
install(FILES ${package}/moonshift.env DESTINATION /etc/moonshift COMPONENT package EXCLUDE_FROM_ALL)
install(FILES LICENSE DESTINATION share/doc/moonshift RENAME copyright COMPONENT package EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME moonshift)
set(CPACK_PACKAGE_VENDOR Moonshift)
set(CPACK_PACKAGE_CONTACT "Moonshift <moonshift@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "LLM inference engine whose scheduling is scripted in Lua")
set(CPACK_PACKAGE_DESCRIPTION "Serves GGUF and safetensors models behind an OpenAI-compatible API.
Lua policies decide which request runs when, on which ranks and in which layout;
they can be replaced while answers stream, and tried on recorded or made-up
traffic in a simulator.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL Unspecified package)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "lua-busted, luajit") # policy test runs specs with them
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${package}/conffiles ${package}/postinst ${package}/prerm)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
